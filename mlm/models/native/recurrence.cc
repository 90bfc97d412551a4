// Recurrence along rows, forward and back, for XLA on CPU: see __init__.py, which says what each array is.
//
// A row's states do not depend on other rows', nor one direction's on the other's: each task goes along the tokens of
// some rows of one direction, and waits for no other.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "product.h"
#include "xla/ffi/api/ffi.h"

namespace mlm {
namespace {

namespace ffi = xla::ffi;

// From expm1(2x) = 2^n expm1(r) + 2^n - 1, with r within ln(2) / 2 of zero, where seven terms of its series are enough.
[[gnu::always_inline]] inline float tanh_of(float x) {
  x = x > 10 ? 10 : x;
  x = x < -10 ? -10 : x;
  float n = std::rint(x * 2.88539008f);                                    // 2x / ln(2)
  float r = std::fma(n, -1.42860682e-6f, std::fma(n, -0x1.62e4p-1f, 2 * x));  // ln(2) in two parts
  float series = std::fma(1 / 5040.f, r, 1 / 720.f);
  series = std::fma(std::fma(series, r, 1 / 120.f), r, 1 / 24.f);
  series = std::fma(std::fma(series, r, 1 / 6.f), r, 1 / 2.f);
  int32_t bits = (int32_t(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, 4);
  float t = std::fma(scale, std::fma(series, r * r, r), scale - 1);
  return t / (t + 2);
}

[[gnu::always_inline]] inline float sigmoid(float x) { return 0.5f + 0.5f * tanh_of(0.5f * x); }

enum Kind : int64_t { kElman, kGru, kLstm };

struct Cell {  // units' arrays lie one after another in a token's entry, each H long
  int64_t gates, kept, more;  // more: arrays beside the input's in the gradient of the recurrent product
};
constexpr Cell kCells[] = {{1, 0, 0}, {3, 4, 1}, {4, 5, 0}};

// One token of one row. rec: the recurrent product. before: the state that it was made of.
template <Kind kind>
void ahead(int64_t H, const float* __restrict in, const float* __restrict rec, const float* __restrict bias,
           const float* __restrict before, const float* __restrict c_before, float* __restrict h,
           float* __restrict kept) {
  for (int64_t u = 0; u < H; ++u) {
    auto gate = [&](int64_t g) { return in[g * H + u] + rec[g * H + u] + bias[g * H + u]; };
    if constexpr (kind == kElman) {
      h[u] = tanh_of(gate(0));
    } else if constexpr (kind == kGru) {
      float r = sigmoid(gate(0)), z = sigmoid(gate(1)), candidate = rec[2 * H + u] + bias[2 * H + u];
      float n = tanh_of(in[2 * H + u] + r * candidate);
      h[u] = n + z * (before[u] - n);
      kept[u] = r, kept[H + u] = z, kept[2 * H + u] = n, kept[3 * H + u] = candidate;
    } else {
      float i = sigmoid(gate(0)), f = sigmoid(gate(1) + 1), g = tanh_of(gate(2)), o = sigmoid(gate(3));
      float c = f * c_before[u] + i * g;
      h[u] = o * tanh_of(c);
      kept[u] = i, kept[H + u] = f, kept[2 * H + u] = g, kept[3 * H + u] = o, kept[4 * H + u] = c;
    }
  }
}

// The same, back. d_h: the gradient of the state after, but for d_rec: what reaches it through the next token's product.
// d_h and d_c become the gradients of the carry before, as far as they do not go through this token's product.
template <Kind kind>
void back(int64_t H, const float* __restrict h, const float* __restrict kept, const float* __restrict before,
          const float* __restrict c_before, float* __restrict d_h, float* __restrict d_c, float* __restrict d_in,
          float* __restrict d_more) {
  for (int64_t u = 0; u < H; ++u) {
    if constexpr (kind == kElman) {
      d_in[u] = d_h[u] * (1 - h[u] * h[u]);
      d_h[u] = 0;
    } else if constexpr (kind == kGru) {
      float r = kept[u], z = kept[H + u], n = kept[2 * H + u], candidate = kept[3 * H + u];
      float d_n = d_h[u] * (1 - z) * (1 - n * n);
      d_in[u] = d_n * candidate * r * (1 - r);
      d_in[H + u] = d_h[u] * (before[u] - n) * z * (1 - z);
      d_in[2 * H + u] = d_n;
      d_more[u] = d_n * r;
      d_h[u] *= z;
    } else {
      float i = kept[u], f = kept[H + u], g = kept[2 * H + u], o = kept[3 * H + u], t = tanh_of(kept[4 * H + u]);
      float d = d_c[u] + d_h[u] * o * (1 - t * t);
      d_in[u] = d * g * i * (1 - i);
      d_in[H + u] = d * c_before[u] * f * (1 - f);
      d_in[2 * H + u] = d * i * (1 - g * g);
      d_in[3 * H + u] = d_h[u] * t * o * (1 - o);
      d_c[u] = d * f;
      d_h[u] = 0;
    }
  }
}

// run(0), ..., run(tasks - 1), on this thread and on those of the pool that are idle; whether none ran out of memory.
// Threads take tasks as they come, so that none waits for one that never starts.
template <class Run>
bool parallel(ffi::ThreadPool& pool, int64_t tasks, const Run& run) {
  struct State {
    std::atomic<int64_t> next{0};
    int64_t done = 0;
    bool right = true;
    std::mutex mutex;
    std::condition_variable changed;
  };
  auto state = std::make_shared<State>();
  auto work = [state, tasks, &run] {
    for (int64_t task; (task = state->next++) < tasks;) {
      bool right = true;
      try {
        run(task);
      } catch (const std::bad_alloc&) {
        right = false;
      }
      std::lock_guard lock(state->mutex);
      state->right &= right;
      if (++state->done == tasks) state->changed.notify_one();
    }
  };
  for (int64_t i = 1; i < std::min(tasks, pool.num_threads()); ++i) pool.Schedule([work] { work(); });
  work();
  std::unique_lock lock(state->mutex);
  state->changed.wait(lock, [&] { return state->done == tasks; });
  return state->right;
}

struct Sizes {
  int64_t L, B, H, G;
};

struct Direction {  // arrays L x B x their width; kernel H x G
  const void* kernel;
  const float *bias, *input, *d_h;
  const bool* same;
  float *h, *kept, *d_input, *d_more;
};

template <class T>
Packed<T> pack(const Direction& d, const Sizes& n, bool narrow_kernel, bool turned) {
  auto at = [&](int64_t h, int64_t g) {
    return narrow_kernel ? wide(static_cast<const uint16_t*>(d.kernel)[h * n.G + g])
                         : static_cast<const float*>(d.kernel)[h * n.G + g];
  };
  return turned ? Packed<T>(n.G, n.H, [&](int64_t g, int64_t h) { return at(h, g); }) : Packed<T>(n.H, n.G, at);
}

template <class T>
void put(std::vector<typename T::Word>& x, int64_t row, int64_t words, int64_t first, const float* values, int64_t H) {
  for (int64_t u = 0; u < H; ++u)
    T::put(&x[row * words + (first + u) / T::kPacked], (first + u) % T::kPacked, values[u]);
}

template <class T, Kind kind>
void forward(const Direction& d, const Packed<T>& kernel, const Sizes& n, int64_t first, int64_t rows) {
  constexpr Cell cell = kCells[kind];
  std::vector<float> zero(n.H), rec(rows * kernel.columns);
  std::vector<typename T::Word> x(rows * kernel.words);
  for (int64_t l = 0; l < n.L; ++l) {
    auto before = [&](const float* states, int64_t width, int64_t row) {
      int64_t at = l * n.B + first + row;
      return l > 0 && d.same[at] ? states + (at - n.B) * width : zero.data();
    };
    for (int64_t r = 0; r < rows; ++r) put<T>(x, r, kernel.words, 0, before(d.h, n.H, r), n.H);
    product<T>(x, kernel, rows, rec.data());
    for (int64_t r = 0; r < rows; ++r) {
      int64_t at = l * n.B + first + r;
      const float* c_before = kind == kLstm ? before(d.kept + 4 * n.H, cell.kept * n.H, r) : nullptr;
      ahead<kind>(n.H, d.input + at * n.G, &rec[r * kernel.columns], d.bias, before(d.h, n.H, r), c_before,
                  d.h + at * n.H, d.kept + at * cell.kept * n.H);
    }
  }
}

template <class T, Kind kind>
void backward(const Direction& d, const Packed<T>& kernel, const Sizes& n, int64_t first, int64_t rows) {
  constexpr Cell cell = kCells[kind];
  std::vector<float> zero(n.H), rec(rows * kernel.columns), d_h(rows * n.H), d_c(rows * n.H);
  std::vector<typename T::Word> x(rows * kernel.words);
  for (int64_t l = n.L; l-- > 0;) {
    for (int64_t r = 0; r < rows; ++r) {
      int64_t at = l * n.B + first + r;
      auto before = [&](const float* states, int64_t width) {
        return l > 0 && d.same[at] ? states + (at - n.B) * width : zero.data();
      };
      float *d_row = &d_h[r * n.H], *d_input = d.d_input + at * n.G, *d_more = d.d_more + at * cell.more * n.H;
      for (int64_t u = 0; u < n.H; ++u) d_row[u] += d.d_h[at * n.H + u];
      const float* c_before = kind == kLstm ? before(d.kept + 4 * n.H, cell.kept * n.H) : nullptr;
      back<kind>(n.H, d.h + at * n.H, d.kept + at * cell.kept * n.H, before(d.h, n.H), c_before, d_row, &d_c[r * n.H],
                 d_input, d_more);
      put<T>(x, r, kernel.words, 0, d_input, (cell.gates - cell.more) * n.H);
      put<T>(x, r, kernel.words, (cell.gates - cell.more) * n.H, d_more, cell.more * n.H);
    }
    product<T>(x, kernel, rows, rec.data());
    for (int64_t r = 0; r < rows; ++r) {
      bool same = l > 0 && d.same[l * n.B + first + r];
      for (int64_t u = 0; u < n.H; ++u) {
        d_h[r * n.H + u] = same ? d_h[r * n.H + u] + rec[r * kernel.columns + u] : 0;
        d_c[r * n.H + u] = same ? d_c[r * n.H + u] : 0;
      }
    }
  }
}

template <class T, Kind kind>
bool run(ffi::ThreadPool& pool, const std::vector<Direction>& directions, const Sizes& n, bool narrow_kernel,
         bool is_back) {
  int64_t D = directions.size(), parts = std::clamp<int64_t>((pool.num_threads() + D - 1) / D, 1, n.B);
  int64_t rows = (n.B + parts - 1) / parts;
  std::vector<std::unique_ptr<Packed<T>>> kernels(D);
  bool packed = parallel(pool, D, [&](int64_t i) {
    kernels[i] = std::make_unique<Packed<T>>(pack<T>(directions[i], n, narrow_kernel, is_back));
  });
  return packed && parallel(pool, D * parts, [&](int64_t task) {
    int64_t i = task % D, first = task / D * rows, count = std::min(rows, n.B - first);
    if (count > 0) (is_back ? backward<T, kind> : forward<T, kind>)(directions[i], *kernels[i], n, first, count);
  });
}

ffi::Error call(ffi::ThreadPool pool, int64_t kind, bool is_back, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  size_t reads = is_back ? 5 : 4;  // of each direction
  std::vector<Direction> directions(args.size() / reads);
  auto arg = [&](size_t at) { return *args.get<ffi::AnyBuffer>(at); };
  auto ret = [&](size_t at) { return (*rets.get<ffi::AnyBuffer>(at))->typed_data<float>(); };
  for (size_t i = 0; i < directions.size(); ++i) {
    size_t at = i * reads;
    auto floats = [&](size_t more) { return arg(at + more).typed_data<float>(); };
    if (is_back)
      directions[i] = {arg(at).untyped_data(), nullptr, nullptr, floats(4), arg(at + 1).typed_data<bool>(),
                       floats(2), floats(3), ret(2 * i), ret(2 * i + 1)};
    else
      directions[i] = {arg(at).untyped_data(), floats(1), floats(2), nullptr, arg(at + 3).typed_data<bool>(),
                       ret(2 * i), ret(2 * i + 1), nullptr, nullptr};
  }
  auto tokens = arg(is_back ? 1 : 3).dimensions(), kernel = arg(0).dimensions();
  Sizes sizes{tokens[0], tokens[1], kernel[0], kernel[1]};
  bool narrow_kernel = arg(0).element_type() == ffi::BF16;
  auto by_type = [&](auto type) {
    using T = decltype(type);
    auto each = {run<T, kElman>, run<T, kGru>, run<T, kLstm>};
    return each.begin()[kind](pool, directions, sizes, narrow_kernel, is_back);
  };
  bool right = narrow_kernel ? by_type(BFloat16{}) : by_type(Float32{});
  return right ? ffi::Error::Success() : ffi::Error(ffi::ErrorCode::kResourceExhausted, "no memory left");
}

}  // namespace
}  // namespace mlm

XLA_FFI_DEFINE_HANDLER_SYMBOL(Recurrence, mlm::call,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Attr<int64_t>("kind")
                                  .Attr<bool>("back")
                                  .RemainingArgs()
                                  .RemainingRets());
