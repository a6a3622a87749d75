// Convolutions with SAME padding, their gradients with respect to input and weights, and the rounding of results, for tensors
// of FP32 or 16 bits. x is [batch, height, width, channels], the weights are [kernel, kernel, channels of a group, filters].
//
// All three are products of matrices. A row of the first matrix has the pixels under one window; rows are gathered in strips
// that stay in the caches. A core multiplies them: `Vectors` in FP32, or `Units` in the matrix units of the processor. Sums are
// FP32. The gradient of the weights adds the sums of parts of the batch in double
// precision and in a fixed order, so the number of threads changes no bit.

#include <atomic>
#include <memory>

#include "emulator/native/results.h"
#include "emulator/native/storage.h"
#include "emulator/native/tiles.h"
#include "emulator/native/units.h"
#include "emulator/native/windows.h"

namespace native {
namespace {

constexpr int64_t kColumns = 256;       // A work item of this gradient has at most this many filters.
constexpr int64_t kPartPixels = 8192;   // A part of the batch has about this many pixels.
constexpr int64_t kItems = 8;           // If there would be fewer work items for threads, there are more parts.

// Operands as FP32 numbers, for vectors.
class Vectors {
 public:
  using Number = float;
  // The rows of a strip, the pixels that the gradient of the weights takes at a time, and the numbers of a row. The heights of
  // tiles divide them.
  static constexpr int64_t kRows = 48, kPixels = 96, kDepth = 240, kHeight = kTileRows, kStep = 1, kParts = 1;
  static constexpr int64_t kPlane = kPixels * kDepth;
  static_assert(kRows % kTileRows == 0 && kDepth % kTileRows == 0);

  static Panels panels(int64_t columns) { return Panels(columns); }

  template <typename T>
  static void put(const T* from, int64_t count, Number* to) { widen(from, count, to); }

  static void clear(int64_t count, Number* to) { std::fill_n(to, count, 0.0f); }

  static int put_weights(const float (&rows)[2][2 * kTile], int64_t k, int64_t depth, int64_t width, Number* to) {
    for (int64_t r = 0; r < std::min<int64_t>(2, depth - k); ++r) std::copy_n(rows[r], width, to + (k + r) * width);
    return 1;
  }

  void multiply(const Number* strip, int, int64_t rows, const Number* weights, int, const Panels& panels, int64_t depth,
                float* sums) {
    multiply_panels<kDepth, 1>(strip, rows, weights, panels, depth, sums);
  }

  template <typename T>
  static void put_gradient(const T* from, int64_t row, int64_t rows, int64_t columns, const Panels& panels, Number* to) {
    for (int64_t c = 0; c < columns; c += panels.width) {
      Number* const own = to + c * rows + row * panels.width;
      const int64_t width = std::min(panels.width, columns - c);
      widen(from + c, width, own);
      std::fill(own + width, own + panels.width, 0.0f);
    }
  }

  void multiply_transposed(const Number* strip, int, int64_t rows, const Number* gradients, int, const Panels& panels,
                           int64_t pixels, float* sums) {
    multiply_panels<1, kDepth>(strip, rows, gradients, panels, pixels, sums);
  }
};

// A tensor of images, of which each group of a convolution reads some channels.
struct Images {
  Images(const Tensor& tensor, int64_t groups)
      : batch(tensor.dim_size(0)), rows(tensor.dim_size(1)), columns(tensor.dim_size(2)), channels(tensor.dim_size(3)),
        of_group(channels / groups) {}

  int64_t pixels() const { return rows * columns; }

  int64_t batch, rows, columns, channels, of_group;
};

// Which pixels of a source a target pixel reads. Target (r, c) reads the source pixels (r * step + tap row, c * step + tap
// column) for every tap. Pixels outside the source are 0.
struct Window {
  struct Tap {
    int64_t row, column, adjacent;  // `adjacent` is the number of taps, from this one on, that are neighbours in a row.
  };

  // Adds a tap. Taps are added by rows, from left to right.
  void add(int64_t row, int64_t column) {
    taps.push_back({row, column, 1});
    for (int64_t k = taps.size() - 2; k >= 0 && taps[k].row == row && taps[k].column + taps[k].adjacent == column; --k) {
      ++taps[k].adjacent;
    }
  }

  int64_t step = 1;
  std::vector<Tap> taps;
};

// The targets of a window, a grid of pixels of an image: pixel (first_row + r * spacing, first_column + c * spacing).
struct Targets {
  int64_t pixel(int64_t r, int64_t c) const { return (first_row + r * spacing) * width + first_column + c * spacing; }

  int64_t rows, columns, width, first_row = 0, first_column = 0, spacing = 1;
};

// A target: its sample, row and column.
struct Place {
  Place(const Targets& targets, int64_t index)
      : sample(index / (targets.rows * targets.columns)), row(index / targets.columns % targets.rows),
        column(index % targets.columns) {}

  void advance(const Targets& targets) {
    if (++column < targets.columns) return;
    column = 0;
    if (++row < targets.rows) return;
    row = 0;
    ++sample;
  }

  int64_t sample, row, column;
};

// Gathers columns [begin, end) of the rows of a matrix, `count` rows beginning with target `first`, into a strip whose rows have
// the distance kDepth. Column tap * (channels of a group) + c has channel c of the pixel of this tap.
template <typename Core>
void gather(const Tensor& x, const Images& images, int64_t group, const Window& window, const Targets& targets, int64_t first,
            int64_t count, int64_t begin, int64_t end, typename Core::Number* strip) {
  const int64_t channels = images.of_group;
  with_storage(x.dtype(), [&](auto* type) {
    Place place(targets, first);
    for (int64_t k = 0; k < count; ++k, place.advance(targets), strip += Core::kDepth) {
      const auto* const sample = static_cast<decltype(type)>(x.data()) + place.sample * images.pixels() * images.channels + group * channels;
      auto* to = strip;
      for (int64_t column = begin; column < end;) {
        const int64_t t = column / channels, channel = column % channels;
        const Window::Tap& tap = window.taps[t];
        const int64_t row = place.row * window.step + tap.row, c = place.column * window.step + tap.column;
        const bool inside = row >= 0 && row < images.rows && c >= 0 && c < images.columns;
        const int64_t taps = inside && images.channels == channels ? std::min(tap.adjacent, images.columns - c) : 1;
        const int64_t run = std::min(taps * channels - channel, end - column);
        if (inside) {
          Core::put(sample + (row * images.columns + c) * images.channels + channel, run, to);
        } else {
          Core::clear(run, to);
        }
        column += run;
        to += run;
      }
      Core::clear(round_up(end - begin, Core::kStep) - (end - begin), to);
    }
  });
}

// A row of weights: the weight of filter f is first[f * step].
struct WeightRow {
  const float* first;
  int64_t step;
};

// Weights in the order in which a product reads them: [groups, parts of the depth, panels, depth of a part, columns of a
// panel]. `row(group, tap, channel)` returns a row.
template <typename Core>
class Packed {
 public:
  template <typename Row>
  Packed(OpKernelContext* context, int64_t groups, int64_t taps, int64_t channels, int64_t filters, Row row)
      : panels(Core::panels(filters)), depth_(taps * channels), of_group_(round_up(depth_, Core::kStep)),
        numbers_(groups * of_group_ * Core::kParts * panels.padded()) {
    const int64_t pairs = (depth_ + 1) / 2;
    in_threads(context, groups * pairs, 2 * filters, [&](int64_t from, int64_t to) {
      int seen = 1;
      for (int64_t pair = from; pair < to; ++pair) {
        const int64_t group = pair / pairs, k = pair % pairs * 2, begin = k / Core::kDepth * Core::kDepth;
        const int64_t depth = round_up(std::min(Core::kDepth, depth_ - begin), Core::kStep);
        auto* own = &numbers_[(group * of_group_ + begin) * Core::kParts * panels.padded()];
        const WeightRow rows[2] = {row(group, k / channels, k % channels),
                                   k + 1 < depth_ ? row(group, (k + 1) / channels, (k + 1) % channels) : WeightRow{}};
        for (int64_t f = 0; f < filters; f += panels.width, own += Core::kParts * depth * panels.width) {
          float block[2][2 * kTile] = {};
          const int64_t width = std::min(panels.width, filters - f);
          for (int64_t r = 0; r < (k + 1 < depth_ ? 2 : 1); ++r) {
            const float* const weights = rows[r].first + f * rows[r].step;
            for (int64_t c = 0; c < width; ++c) block[r][c] = weights[c * rows[r].step];
          }
          seen = std::max(seen, Core::put_weights(block, k - begin, depth, panels.width, own));
        }
      }
      for (int known = parts_; known < seen && !parts_.compare_exchange_weak(known, seen);) {
      }
    });
  }

  int64_t depth() const { return depth_; }
  int parts() const { return parts_; }

  const typename Core::Number* part(int64_t group, int64_t begin) const {
    return &numbers_[(group * of_group_ + begin) * Core::kParts * panels.padded()];
  }

  const Panels panels;

 private:
  const int64_t depth_, of_group_;
  std::vector<typename Core::Number> numbers_;
  std::atomic<int> parts_{1};
};

// The memory of a thread for a core.
template <typename Number>
struct Memory {
  static Memory& own() {
    static thread_local Memory memory;
    return memory;
  }

  // Returns memory for at least `count` numbers.
  template <typename T>
  static T* of(std::vector<T>* memory, int64_t count) {
    if (static_cast<int64_t>(memory->size()) < count) memory->resize(count);
    return memory->data();
  }

  std::vector<Number> strip, columns;
  std::vector<float> sums, row;
};

// Computes the results at the targets: each is the product of the window's pixels with the weights, rounded.
template <typename Core>
void convolve(OpKernelContext* context, const Tensor& x, int64_t groups, const Window& window, const Targets& targets,
              const Packed<Core>& weights, const Results& results, Tensor* y) {
  using Number = typename Core::Number;
  const Images images(x, groups);
  const int64_t count = images.batch * targets.rows * targets.columns, strips = (count + Core::kRows - 1) / Core::kRows;
  const int64_t filters = y->dim_size(3), of_group = filters / groups, pixels = y->dim_size(1) * y->dim_size(2);
  const int64_t padded = weights.panels.padded(), depth = weights.depth();
  const Writer writer(y);
  in_shares(context, strips * groups, Core::kRows * (depth + 8) * padded / 32 + 1, [&](int64_t begin, int64_t end) {
    Core core;
    auto& memory = Memory<Number>::own();
    Number* const strip = memory.of(&memory.strip, Core::kParts * Core::kPlane);
    float* const sums = memory.of(&memory.sums, Core::kRows * padded);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t group = item % groups, first = item / groups * Core::kRows, rows = std::min(Core::kRows, count - first);
      const int64_t whole = round_up(rows, Core::kHeight);
      std::fill(sums, sums + whole * padded, 0.0f);
      for (int64_t part = 0; part < depth; part += Core::kDepth) {
        const int64_t own = std::min(Core::kDepth, depth - part);
        gather<Core>(x, images, group, window, targets, first, rows, part, part + own, strip);
        core.multiply(strip, parts_of(x), whole, weights.part(group, part), weights.parts(), weights.panels, own, sums);
      }
      Place place(targets, first);
      for (int64_t r = 0; r < rows; ++r, place.advance(targets)) {
        const int64_t index = targets.pixel(place.row, place.column) * filters + group * of_group;
        const int64_t start = place.sample * pixels * filters + index;
        float* const to = writer.begin(start, of_group, &memory.row);
        results.round(sums + r * padded, of_group, place.sample, static_cast<uint32_t>(index), to);
        writer.end(start, of_group, memory.row);
      }
    }
  });
}

// The sizes of a convolution.
struct SizeRules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(read_size(context, "stride", &stride));
    TF_RETURN_IF_ERROR(context->GetAttr("in_units", &in_units));
    return read_size(context, "groups", &groups);
  }

  bool uses_units() const { return in_units && Unit::available(); }

  int64_t stride = 1, groups = 1;
  bool in_units = false;
};

struct ForwardRules : SizeRules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(SizeRules::read(context));
    return rounding.read(context);
  }

  void check(Shapes* shapes) const {
    shapes->input(0, "nhwc");
    shapes->input(1, "klif");
    shapes->require_positive("klcf");
    shapes->divide('c', 'i', groups);
    shapes->divide('f', 'g', groups);
    shapes->stride("hw", "HW", stride);
    rounding.check(shapes, 2);
    shapes->output(0, "nHWf");
  }

  ResultRounding rounding;
};

class Convolution : public CheckedKernel<ForwardRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    return rules_.uses_units() ? compute<Units>(context) : compute<Vectors>(context);
  }

 private:
  template <typename Core>
  void compute(OpKernelContext* context) const {
    const Tensor &x = context->input(0), &w = context->input(1);
    const int64_t stride = rules_.stride, groups = rules_.groups, filters = w.dim_size(3), of_group = filters / groups;
    const Axis rows(x.dim_size(1), w.dim_size(0), stride), columns(x.dim_size(2), w.dim_size(1), stride);
    Tensor* y;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({x.dim_size(0), rows.out, columns.out, filters}), &y));
    if (y->NumElements() == 0) return;
    Window window;
    window.step = stride;
    for (int64_t i = 0; i < rows.kernel; ++i) {
      for (int64_t j = 0; j < columns.kernel; ++j) window.add(i - rows.before, j - columns.before);
    }
    const int64_t channels = w.dim_size(2);
    const float* numbers = w.flat<float>().data();
    const Packed<Core> weights(context, groups, window.taps.size(), channels, of_group, [&](int64_t g, int64_t tap, int64_t c) {
      return WeightRow{numbers + (tap * channels + c) * filters + g * of_group, 1};
    });
    const Targets targets{rows.out, columns.out, columns.out};
    convolve(context, x, groups, window, targets, weights, rules_.rounding.results(context, 2, x.dim_size(0)), y);
  }
};

struct InputGradientRules : ForwardRules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(ForwardRules::read(context));
    TF_RETURN_IF_ERROR(read_size(context, "rows", &rows));
    return read_size(context, "columns", &columns);
  }

  void check(Shapes* shapes) const {
    shapes->set('h', rows);
    shapes->set('w', columns);
    shapes->stride("hw", "HW", stride);
    shapes->input(0, "nHWf");
    shapes->input(1, "klif");
    shapes->require_positive("kli");
    shapes->divide('f', 'g', groups);
    shapes->divide('c', 'i', groups);
    rounding.check(shapes, 2);
    shapes->output(0, "nhwc");
  }

  int64_t rows = 1, columns = 1;
};

// The gradient of a convolution's input. With a stride of s, the pixels of the input have s * s phases. The pixels of one phase
// are under the same taps of the windows that contain them.
class InputGradient : public CheckedKernel<InputGradientRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    return rules_.uses_units() ? compute<Units>(context) : compute<Vectors>(context);
  }

 private:
  template <typename Core>
  void compute(OpKernelContext* context) const {
    const Tensor &dy = context->input(0), &w = context->input(1);
    const int64_t stride = rules_.stride, groups = rules_.groups, filters = w.dim_size(3), of_group = filters / groups;
    const int64_t channels = w.dim_size(2);
    const Axis rows(rules_.rows, w.dim_size(0), stride), columns(rules_.columns, w.dim_size(1), stride);
    Tensor* dx;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({dy.dim_size(0), rows.in, columns.in, channels * groups}), &dx));
    if (dx->NumElements() == 0) return;
    const Results results = rules_.rounding.results(context, 2, dy.dim_size(0));
    const float* numbers = w.flat<float>().data();
    for (int64_t row = 0; row < std::min(stride, rows.in); ++row) {
      for (int64_t column = 0; column < std::min(stride, columns.in); ++column) {
        Window window;
        std::vector<int64_t> taps;
        for (int64_t i = rows.kernel - 1; i >= 0; --i) {
          for (int64_t j = columns.kernel - 1; j >= 0; --j) {
            const int64_t r = row + rows.before - i, c = column + columns.before - j;
            if (r % stride || c % stride) continue;
            window.add(r / stride, c / stride);
            taps.push_back(i * columns.kernel + j);
          }
        }
        const Packed<Core> weights(context, groups, taps.size(), of_group, channels, [&](int64_t g, int64_t tap, int64_t f) {
          return WeightRow{numbers + taps[tap] * channels * filters + g * of_group + f, filters};
        });
        const Targets targets{(rows.in - row + stride - 1) / stride, (columns.in - column + stride - 1) / stride, columns.in,
                              row, column, stride};
        convolve(context, dy, groups, window, targets, weights, results, dx);
      }
    }
  }
};

struct WeightsGradientRules : SizeRules {
  template <typename Context>
  absl::Status read(Context* context) {
    TF_RETURN_IF_ERROR(SizeRules::read(context));
    return read_size(context, "kernel", &kernel, kMostKernel);
  }

  void check(Shapes* shapes) const {
    shapes->set('k', kernel);
    shapes->input(0, "nhwc");
    shapes->stride("hw", "HW", stride);
    shapes->input(1, "nHWf");
    shapes->require_positive("cf");
    shapes->divide('c', 'i', groups);
    shapes->divide('f', 'g', groups);
    shapes->output(0, "kkif");
  }

  int64_t kernel = 1;
};

class WeightsGradient : public CheckedKernel<WeightsGradientRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    return rules_.uses_units() ? compute<Units>(context) : compute<Vectors>(context);
  }

 private:
  template <typename Core>
  void compute(OpKernelContext* context) const {
    using Number = typename Core::Number;
    constexpr int64_t kDepth = Core::kDepth, kPixels = Core::kPixels;
    const Tensor &x = context->input(0), &dy = context->input(1);
    const int64_t groups = rules_.groups, kernel = rules_.kernel, stride = rules_.stride;
    const Images images(x, groups), gradients(dy, groups);
    const Axis rows(images.rows, kernel, stride), columns(images.columns, kernel, stride);
    const int64_t filters = gradients.channels, of_group = gradients.of_group, depth = kernel * kernel * images.of_group;
    Tensor* dw;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({kernel, kernel, images.of_group, filters}), &dw));
    Window window;
    window.step = stride;
    for (int64_t i = 0; i < kernel; ++i) {
      for (int64_t j = 0; j < kernel; ++j) window.add(i - rows.before, j - columns.before);
    }
    const Targets targets{rows.out, columns.out, columns.out};
    // A work item has some rows (taps and channels) and columns (filters) of the weights of a group, and a part of the batch.
    const int64_t strips = (depth + kDepth - 1) / kDepth, blocks = (of_group + kColumns - 1) / kColumns;
    const int64_t pixels = gradients.pixels(), batch = pixels ? images.batch : 0, items = groups * strips * blocks;
    const int64_t wanted = std::max(batch * pixels / kPartPixels, (kItems + items - 1) / items);
    const int64_t samples = std::max<int64_t>((batch + wanted - 1) / std::max<int64_t>(wanted, 1), 1);
    const int64_t parts = (batch + samples - 1) / samples;
    const int64_t tall = round_up(std::min(kDepth, depth), Core::kHeight);
    const Panels widest = Core::panels(std::min(kColumns, of_group));
    const int64_t size = tall * widest.padded();
    Tensor kept;  // the sums, [work items, parts, rows, columns].
    OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT, TensorShape({items * parts * size}), &kept));
    float* const sums = kept.flat<float>().data();
    auto of_item = [&](int64_t item) {
      struct Item {
        int64_t group, row, rows, column, columns;
      };
      const int64_t row = item / blocks % strips * kDepth, column = item % blocks * kColumns;
      return Item{item / (blocks * strips), row, std::min(kDepth, depth - row), column, std::min(kColumns, of_group - column)};
    };
    in_shares(context, items * parts, samples * pixels * tall * widest.padded() / 32 + 1, [&](int64_t begin, int64_t end) {
      Core core;
      auto& memory = Memory<Number>::own();
      Number* const strip = memory.of(&memory.strip, Core::kParts * Core::kPlane);
      Number* const arriving = memory.of(&memory.columns, Core::kParts * kPixels * widest.padded());
      for (int64_t k = begin; k < end; ++k) {
        const auto item = of_item(k / parts);
        const Panels panels = Core::panels(item.columns);
        float* const own = sums + k * size;
        std::fill(own, own + size, 0.0f);
        const int64_t last = std::min(k % parts * samples + samples, batch) * pixels;
        for (int64_t first = k % parts * samples * pixels; first < last; first += kPixels) {
          const int64_t count = std::min(kPixels, last - first);
          gather<Core>(x, images, item.group, window, targets, first, count, item.row, item.row + item.rows, strip);
          with_storage(dy.dtype(), [&](auto* type) {
            const auto* gradient = static_cast<decltype(type)>(dy.data()) + first * filters + item.group * of_group + item.column;
            for (int64_t p = 0; p < count; ++p, gradient += filters) {
              Core::put_gradient(gradient, p, count, item.columns, panels, arriving);
            }
          });
          core.multiply_transposed(strip, parts_of(x), round_up(item.rows, Core::kHeight), arriving, parts_of(dy), panels, count, own);
        }
      }
    });
    float* const to = dw->flat<float>().data();
    in_threads(context, items * tall, parts * widest.padded() + 1, [&](int64_t begin, int64_t end) {
      std::vector<double> total(widest.padded());
      for (int64_t k = begin; k < end; ++k) {
        const auto item = of_item(k / tall);
        const int64_t row = k % tall, padded = Core::panels(item.columns).padded();
        if (row >= item.rows) continue;
        std::fill(total.begin(), total.end(), 0.0);
        for (int64_t part = 0; part < parts; ++part) {
          const float* const own = sums + (k / tall * parts + part) * size + row * padded;
          for (int64_t c = 0; c < item.columns; ++c) total[c] += own[c];
        }
        float* const own = to + (item.row + row) * filters + item.group * of_group + item.column;
        for (int64_t c = 0; c < item.columns; ++c) own[c] = static_cast<float>(total[c]);
      }
    });
  }
};

REGISTER_OP("EmulatorConvolution")
    .Input("x: T").Input("weights: float").Input("noise: count * uint64")
    .Attr("stride: int >= 1").Attr("groups: int >= 1").Attr("in_units: bool = false")
    .Attr(kRoundings).Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds)
    .Attr("count: int >= 0").Attr("salt: int = 0").Attr(kStorage).Attr(kReturnedStorage)
    .Output("y: V")
    .SetShapeFn(set_shapes<ForwardRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorConvolution").Device(tensorflow::DEVICE_CPU), Convolution);

REGISTER_OP("EmulatorConvolutionInputGradient")
    .Input("dy: U").Input("weights: float").Input("noise: count * uint64")
    .Attr("stride: int >= 1").Attr("groups: int >= 1").Attr("in_units: bool = false").Attr("rows: int >= 1").Attr("columns: int >= 1")
    .Attr(kRoundings).Attr(kFractionBits).Attr(kLeastExponent).Attr(kLargest).Attr(kBeyond).Attr(kKinds)
    .Attr("count: int >= 0").Attr("salt: int = 0").Attr(kArrivingStorage).Attr(kReturnedStorage)
    .Output("dx: V")
    .SetShapeFn(set_shapes<InputGradientRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorConvolutionInputGradient").Device(tensorflow::DEVICE_CPU), InputGradient);

REGISTER_OP("EmulatorConvolutionWeightsGradient")
    .Input("x: T").Input("dy: U")
    .Attr("stride: int >= 1").Attr("groups: int >= 1").Attr("in_units: bool = false").Attr("kernel: int >= 1").Attr(kStorage).Attr(kArrivingStorage)
    .Output("dw: float")
    .SetShapeFn(set_shapes<WeightsGradientRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorConvolutionWeightsGradient").Device(tensorflow::DEVICE_CPU), WeightsGradient);

}  // namespace
}  // namespace native
