// Products of a few rows with a matrix that is packed once, with float32 or bfloat16 operands.
#ifndef MLM_PRODUCT_H_
#define MLM_PRODUCT_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace mlm {

constexpr int64_t kLanes = 16, kRows = 8, kColumns = 3;  // of a tile: 24 sums and 3 vectors of the matrix in registers
using Lanes = float __attribute__((vector_size(4 * kLanes)));
using UnalignedLanes = float __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

inline int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

inline float to_float(uint16_t x) {
  uint32_t bits = uint32_t(x) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

inline uint16_t to_bfloat16(float x) {  // to the nearest bfloat16, ties to even
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return 0x7fc0;
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// The type of the operands of a product; a word holds kPacked of them, for one lane.
struct Float32 {
  using Word = float;
  static constexpr int64_t kPacked = 1;
  static void store(Word* word, int64_t, float x) { *word = x; }
  static Lanes add(Lanes sum, Word x, const Word* w) { return sum + x * *reinterpret_cast<const UnalignedLanes*>(w); }
};

#ifdef __AVX512BF16__
struct BFloat16 {
  using Word = uint32_t;
  static constexpr int64_t kPacked = 2;
  static void store(Word* word, int64_t at, float x) {
    uint16_t bits = to_bfloat16(x);
    std::memcpy(reinterpret_cast<char*>(word) + 2 * at, &bits, 2);
  }
  static Lanes add(Lanes sum, Word x, const Word* w) {
    return (Lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(x), (__m512bh)_mm512_loadu_si512(w));
  }
};
#else
struct BFloat16 : Float32 {
  static void store(Word* word, int64_t, float x) { *word = to_float(to_bfloat16(x)); }
};
#endif

template <class T>
struct Packed {  // K x N: tiles of kColumns * kLanes columns, each K / kPacked words deep
  int64_t words, columns;
  std::vector<typename T::Word> data;

  template <class Read>
  Packed(int64_t K, int64_t N, Read read)
      : words(round_up(K, T::kPacked) / T::kPacked), columns(round_up(N, kLanes)), data(words * columns) {
    for (int64_t left = 0; left < columns; left += kColumns * kLanes) {
      int64_t width = std::min(kColumns * kLanes, columns - left);
      for (int64_t k = 0; k < K; ++k)
        for (int64_t n = left; n < std::min(left + width, N); ++n)
          T::store(&data[left * words + k / T::kPacked * width + n - left], k % T::kPacked, read(k, n));
    }
  }
};

template <class T, int R, int C>
void tile(const typename T::Word* x, int64_t words, const typename T::Word* w, float* out, int64_t stride) {
  Lanes sums[R][C] = {};
  for (int64_t k = 0; k < words; ++k, w += C * kLanes)
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) sums[r][c] = T::add(sums[r][c], x[r * words + k], w + c * kLanes);
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) *reinterpret_cast<UnalignedLanes*>(out + r * stride + c * kLanes) = sums[r][c];
}

template <class T, int R>
void multiply_rows(const typename T::Word* x, const Packed<T>& w, int64_t rows, float* out) {
  if constexpr (R > 0) {
    if (rows < R) return multiply_rows<T, R - 1>(x, w, rows, out);
    for (int64_t left = 0; left < w.columns; left += kColumns * kLanes) {
      auto* panel = &w.data[left * w.words];
      switch (std::min(kColumns, (w.columns - left) / kLanes)) {
        case 1: tile<T, R, 1>(x, w.words, panel, out + left, w.columns); break;
        case 2: tile<T, R, 2>(x, w.words, panel, out + left, w.columns); break;
        default: tile<T, R, 3>(x, w.words, panel, out + left, w.columns);
      }
    }
    multiply_rows<T, R>(x + R * w.words, w, rows - R, out + R * w.columns);
  }
}

// out = x w; a row of out has w.columns entries, x consists of words.
template <class T>
void product(const std::vector<typename T::Word>& x, const Packed<T>& w, int64_t rows, float* out) {
  multiply_rows<T, kRows>(x.data(), w, rows, out);
}

}  // namespace mlm

#endif  // MLM_PRODUCT_H_
