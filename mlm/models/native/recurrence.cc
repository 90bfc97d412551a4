// The forward and backward pass of recurrent layers, for XLA on CPU; __init__.py describes the arrays.
//
// The states of an example depend neither on other examples nor on the other direction: a task runs some examples (rows
// of a product) of one direction over all tokens, and waits for no other task.

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

struct Cell {  // in units of H floats per token
  int64_t gates, saved, extra;  // extra: arrays of the recurrent product's gradient beyond the input's
};
constexpr Cell kCells[] = {{1, 0, 0}, {3, 4, 1}, {4, 5, 0}};

// One token of one example. rec: the recurrent product. before: the previous state.
template <Kind kind>
void step_forward(int64_t H, const float* __restrict in, const float* __restrict rec, const float* __restrict bias,
                  const float* __restrict before, const float* __restrict c_before, float* __restrict h,
                  float* __restrict saved) {
  for (int64_t u = 0; u < H; ++u) {
    auto gate = [&](int64_t g) { return in[g * H + u] + rec[g * H + u] + bias[g * H + u]; };
    if constexpr (kind == kElman) {
      h[u] = tanh_of(gate(0));
    } else if constexpr (kind == kGru) {
      float r = sigmoid(gate(0)), z = sigmoid(gate(1)), candidate = rec[2 * H + u] + bias[2 * H + u];
      float n = tanh_of(in[2 * H + u] + r * candidate);
      h[u] = n + z * (before[u] - n);
      saved[u] = r, saved[H + u] = z, saved[2 * H + u] = n, saved[3 * H + u] = candidate;
    } else {
      float i = sigmoid(gate(0)), f = sigmoid(gate(1) + 1), g = tanh_of(gate(2)), o = sigmoid(gate(3));
      float c = f * c_before[u] + i * g;
      h[u] = o * tanh_of(c);
      saved[u] = i, saved[H + u] = f, saved[2 * H + u] = g, saved[3 * H + u] = o, saved[4 * H + u] = c;
    }
  }
}

// The backward pass of step_forward. d_h and d_c: the gradients of the new carry on input; on output those of the
// previous carry, without what flows through the recurrent product.
template <Kind kind>
void step_backward(int64_t H, const float* __restrict h, const float* __restrict saved, const float* __restrict before,
                   const float* __restrict c_before, float* __restrict d_h, float* __restrict d_c,
                   float* __restrict d_in, float* __restrict d_extra) {
  for (int64_t u = 0; u < H; ++u) {
    if constexpr (kind == kElman) {
      d_in[u] = d_h[u] * (1 - h[u] * h[u]);
      d_h[u] = 0;
    } else if constexpr (kind == kGru) {
      float r = saved[u], z = saved[H + u], n = saved[2 * H + u], candidate = saved[3 * H + u];
      float d_n = d_h[u] * (1 - z) * (1 - n * n);
      d_in[u] = d_n * candidate * r * (1 - r);
      d_in[H + u] = d_h[u] * (before[u] - n) * z * (1 - z);
      d_in[2 * H + u] = d_n;
      d_extra[u] = d_n * r;
      d_h[u] *= z;
    } else {
      float i = saved[u], f = saved[H + u], g = saved[2 * H + u], o = saved[3 * H + u], t = tanh_of(saved[4 * H + u]);
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

// Calls run(0), ..., run(tasks - 1) on this thread and on idle threads of the pool; false if one ran out of memory.
// Threads fetch tasks one by one, so that no task waits for a thread that never starts.
template <class Run>
bool parallel(ffi::ThreadPool& pool, int64_t tasks, const Run& run) {
  struct State {
    std::atomic<int64_t> next{0};
    int64_t done = 0;
    bool ok = true;
    std::mutex mutex;
    std::condition_variable changed;
  };
  auto state = std::make_shared<State>();
  auto work = [state, tasks, &run] {
    for (int64_t task; (task = state->next++) < tasks;) {
      bool ok = true;
      try {
        run(task);
      } catch (const std::bad_alloc&) {
        ok = false;
      }
      std::lock_guard lock(state->mutex);
      state->ok &= ok;
      if (++state->done == tasks) state->changed.notify_one();
    }
  };
  for (int64_t i = 1; i < std::min(tasks, pool.num_threads()); ++i) pool.Schedule([work] { work(); });
  work();
  std::unique_lock lock(state->mutex);
  state->changed.wait(lock, [&] { return state->done == tasks; });
  return state->ok;
}

struct Sizes {
  int64_t L, B, H, G;
};

struct Direction {  // arrays are L x B x (their width), the kernel H x G
  const void* kernel;
  const float *bias, *input, *d_h;
  const bool* same;
  float *h, *saved, *d_input, *d_extra;
};

template <class T>
Packed<T> pack(const Direction& d, const Sizes& n, bool is_bfloat16, bool transposed) {
  auto at = [&](int64_t h, int64_t g) {
    return is_bfloat16 ? to_float(static_cast<const uint16_t*>(d.kernel)[h * n.G + g])
                         : static_cast<const float*>(d.kernel)[h * n.G + g];
  };
  return transposed ? Packed<T>(n.G, n.H, [&](int64_t g, int64_t h) { return at(h, g); }) : Packed<T>(n.H, n.G, at);
}

template <class T>
void store(std::vector<typename T::Word>& x, int64_t row, int64_t words, int64_t first, const float* values,
           int64_t H) {
  for (int64_t u = 0; u < H; ++u)
    T::store(&x[row * words + (first + u) / T::kPacked], (first + u) % T::kPacked, values[u]);
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
    for (int64_t r = 0; r < rows; ++r) store<T>(x, r, kernel.words, 0, before(d.h, n.H, r), n.H);
    product<T>(x, kernel, rows, rec.data());
    for (int64_t r = 0; r < rows; ++r) {
      int64_t at = l * n.B + first + r;
      const float* c_before = kind == kLstm ? before(d.saved + 4 * n.H, cell.saved * n.H, r) : nullptr;
      step_forward<kind>(n.H, d.input + at * n.G, &rec[r * kernel.columns], d.bias, before(d.h, n.H, r), c_before,
                         d.h + at * n.H, d.saved + at * cell.saved * n.H);
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
      float *d_row = &d_h[r * n.H], *d_input = d.d_input + at * n.G, *d_extra = d.d_extra + at * cell.extra * n.H;
      for (int64_t u = 0; u < n.H; ++u) d_row[u] += d.d_h[at * n.H + u];
      const float* c_before = kind == kLstm ? before(d.saved + 4 * n.H, cell.saved * n.H) : nullptr;
      step_backward<kind>(n.H, d.h + at * n.H, d.saved + at * cell.saved * n.H, before(d.h, n.H), c_before, d_row,
                          &d_c[r * n.H], d_input, d_extra);
      store<T>(x, r, kernel.words, 0, d_input, (cell.gates - cell.extra) * n.H);
      store<T>(x, r, kernel.words, (cell.gates - cell.extra) * n.H, d_extra, cell.extra * n.H);
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
bool run(ffi::ThreadPool& pool, const std::vector<Direction>& directions, const Sizes& n, bool is_bfloat16,
         bool is_backward) {
  int64_t D = directions.size(), parts = std::clamp<int64_t>((pool.num_threads() + D - 1) / D, 1, n.B);
  int64_t rows = (n.B + parts - 1) / parts;
  std::vector<std::unique_ptr<Packed<T>>> kernels(D);
  bool packed = parallel(pool, D, [&](int64_t i) {
    kernels[i] = std::make_unique<Packed<T>>(pack<T>(directions[i], n, is_bfloat16, is_backward));
  });
  return packed && parallel(pool, D * parts, [&](int64_t task) {
    int64_t i = task % D, first = task / D * rows, count = std::min(rows, n.B - first);
    if (count > 0) (is_backward ? backward<T, kind> : forward<T, kind>)(directions[i], *kernels[i], n, first, count);
  });
}

ffi::Error call(ffi::ThreadPool pool, int64_t kind, bool is_backward, ffi::RemainingArgs args,
                ffi::RemainingRets rets) {
  size_t num_operands = is_backward ? 5 : 4;  // of each direction
  std::vector<Direction> directions(args.size() / num_operands);
  auto arg = [&](size_t at) { return *args.get<ffi::AnyBuffer>(at); };
  auto ret = [&](size_t at) { return (*rets.get<ffi::AnyBuffer>(at))->typed_data<float>(); };
  for (size_t i = 0; i < directions.size(); ++i) {
    size_t at = i * num_operands;
    auto floats = [&](size_t offset) { return arg(at + offset).typed_data<float>(); };
    if (is_backward)
      directions[i] = {arg(at).untyped_data(), nullptr, nullptr, floats(4), arg(at + 1).typed_data<bool>(),
                       floats(2), floats(3), ret(2 * i), ret(2 * i + 1)};
    else
      directions[i] = {arg(at).untyped_data(), floats(1), floats(2), nullptr, arg(at + 3).typed_data<bool>(),
                       ret(2 * i), ret(2 * i + 1), nullptr, nullptr};
  }
  auto tokens = arg(is_backward ? 1 : 3).dimensions(), kernel = arg(0).dimensions();
  Sizes sizes{tokens[0], tokens[1], kernel[0], kernel[1]};
  bool is_bfloat16 = arg(0).element_type() == ffi::BF16;
  auto by_type = [&](auto type) {
    using T = decltype(type);
    auto cells = {run<T, kElman>, run<T, kGru>, run<T, kLstm>};
    return cells.begin()[kind](pool, directions, sizes, is_bfloat16, is_backward);
  };
  bool ok = is_bfloat16 ? by_type(BFloat16{}) : by_type(Float32{});
  return ok ? ffi::Error::Success() : ffi::Error(ffi::ErrorCode::kResourceExhausted, "no memory left");
}

}  // namespace
}  // namespace mlm

XLA_FFI_DEFINE_HANDLER_SYMBOL(Recurrence, mlm::call,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Attr<int64_t>("kind")
                                  .Attr<bool>("backward")
                                  .RemainingArgs()
                                  .RemainingRets());
