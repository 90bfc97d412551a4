"""Messages of forward-backward past words whose order is not seen: all orders that they could stand in, summed.

A set of places is an integer whose bits tell which of the places it holds.

Letters in array names: B queried words of a batch, S states, L places of a window, I places of a bag, U sets of them.
"""

import jax
import jax.numpy as jnp
import numpy as np


def _encode_set(held_BxI):
    """The places that hold a word, as a set."""
    return (held_BxI * 2 ** np.arange(held_BxI.shape[1])).sum(1)


def _list_subsets(count: int, most: int) -> list[int]:
    """All sets of at most `most` of `count` places, small ones first."""
    return sorted((u for u in range(2**count) if u.bit_count() <= most), key=int.bit_count)


def _index_subsets(count: int, most: int) -> np.ndarray:
    """The row of each set of `count` places in `_list_subsets(count, most)`; 0 where it is not in the list."""
    index, sets = np.zeros(2**count, int), _list_subsets(count, most)
    index[sets] = np.arange(len(sets))
    return index


def _sum_over_orders(trans_SxS, evidence_IxBxS, first_BxS, most: int):
    """message_UxBxS: onward from all orders of each of `_list_subsets(I, most)`.

    Dynamic programming over subsets as in Bellman 1962 and Held & Karp 1962, with sums for minima.
    """
    sets = _list_subsets(len(evidence_IxBxS), most)
    index = _index_subsets(len(evidence_IxBxS), most)
    message_UxBxS = first_BxS[None]  # of the empty set; the larger ones follow, size by size
    for size in range(1, most + 1):
        grown = [u for u in sets if u.bit_count() == size]
        # Any of a set's places may be the one that came last.
        last_UxI = np.array([[i for i in range(u.bit_length()) if u >> i & 1] for u in grown])
        rest_UxI = index[np.array(grown)[:, None] - 2**last_UxI]
        seen_UxBxS = sum(
            evidence_IxBxS[last_U] * message_UxBxS[rest_U]
            for last_U, rest_U in zip(last_UxI.T, rest_UxI.T, strict=True)
        )
        onward_UxBxS = jnp.matmul(seen_UxBxS, trans_SxS, precision=jax.lax.Precision.HIGHEST)
        message_UxBxS = jnp.concatenate([message_UxBxS, onward_UxBxS])
    return message_UxBxS


def _propagate_inward(trans_SxS, evidence_LxBxS, held_BxL, first_BxS, places, block: int):
    """The message past all `places`, outermost first: order is summed out within each `block` of them."""
    for begin in range(0, len(places), block):
        place_I = np.array(places[begin : begin + block])
        message_UxBxS = _sum_over_orders(trans_SxS, evidence_LxBxS[place_I], first_BxS, len(place_I))
        index = _index_subsets(len(place_I), len(place_I))
        full_B = jnp.asarray(index)[_encode_set(held_BxL[:, place_I])]
        past_BxS = jnp.take_along_axis(message_UxBxS, full_B[None, :, None], 0)[0]
        first_BxS = past_BxS / past_BxS.sum(-1, keepdims=True)
    return first_BxS


def compute_middle_state(trans_SxS, evidence_LxBxS, held_BxL, first_BxS, last_BxS, inner: int):
    """Weight of each state in the middle place, not knowing the order of the words around: state_BxS.

    The `inner` nearest places on each side are one bag; those further out are bags of `inner` places, which keep their
    side and their order. evidence_LxBxS: likelihood of what is seen in each place, 0 in one that holds no word;
    held_BxL: whether it holds one; first_BxS, last_BxS: messages into the outermost places, from outside.
    """
    length = held_BxL.shape[1]
    middle = length // 2
    near = min(middle, inner)
    first_BxS = _propagate_inward(trans_SxS, evidence_LxBxS, held_BxL, first_BxS, range(middle - near), inner)
    last_BxS = _propagate_inward(
        trans_SxS.T, evidence_LxBxS, held_BxL, last_BxS, range(length - 1, middle + near, -1), inner
    )

    place_I = np.array([middle + i for i in range(-near, near + 1) if i])
    before_UxBxS = _sum_over_orders(trans_SxS, evidence_LxBxS[place_I], first_BxS, near)
    after_UxBxS = _sum_over_orders(trans_SxS.T, evidence_LxBxS[place_I], last_BxS, near)
    sets = _list_subsets(len(place_I), near)
    index = _index_subsets(len(place_I), near)
    held_BxI = held_BxL[:, place_I]

    # Of the words around, one set stands before the middle, as large as it was, and the rest after it.
    rest_UxB = jnp.asarray(index)[_encode_set(held_BxI) & ~np.array(sets)[:, None]]
    size_U = np.array([u.bit_count() for u in sets])
    before_B = held_BxI[:, :near].sum(1)
    possible_UxB = size_U[:, None] == before_B
    state_UxBxS = before_UxBxS * jnp.take_along_axis(after_UxBxS, rest_UxB[:, :, None], 0) * possible_UxB[:, :, None]
    return state_UxBxS.sum(0)
