// Convolutions with 3 x 3 kernels, stride 1 and SAME padding, by Winograd's minimal filtering (filtering.h). A tile has 2 x
// 2 or 4 x 4 results. 2 x 2 results take 16 multiplications instead of 36, and 4 x 4 results 36 instead of 144. The code is
// for processors with vectors of 16 numbers (AVX-512).
//
//   y = A^T ((G w G^T) * (B^T x B)) A,   dw = G^T ((A dy A^T) * (B^T x B)) G,   dx: as y, from dy and rotated weights
//
// Each product * is a matrix product for each of the 4 x 4 or 6 x 6 places in a transformed tile. Sums over channels are in
// order. Sums over tiles are in FP32 within a part of the batch, and in double precision over the parts. The number of
// threads changes no bit, because the parts do not depend on it.

#ifdef __AVX512F__

#include "emulator/native/filtering.h"
#include "emulator/native/products.h"

namespace native {
namespace {

constexpr int64_t kScratch = 512 << 10;        // The transformed tiles of a block take this many bytes, to stay in cache.
constexpr int64_t kLeastTiles = 96;            // A block has at least this many tiles, so that weights are read less often.
constexpr int64_t kBlocks = 8, kTilesStep = 24;  // There are at least 8 blocks for threads, of 24 tiles or a multiple.
constexpr int64_t kParts = 4;                  // The batch has at least this many parts, for threads.
constexpr int64_t kTilesOfPart = 2048;         // A part has at most this many tiles, which are summed in FP32.
constexpr int64_t kInputsOfItem = 64;          // A work item of the gradient of weights has this many channels of x.
// Tiles of 4 x 4 results are used if both conditions hold:
constexpr int64_t kFewer = 75;                 // They need at most this percentage of the products of 2 x 2 tiles.
constexpr int64_t kWeightsOfFours = 1 << 15;   // A group has at most this many weights per tap; more take too long.
// Reading large weights for every block would take too long. Instead, the threads share each step for many tiles.
constexpr int64_t kWide = 1 << 16;             // The weights of a group are large if inputs x outputs is greater.
constexpr int64_t kWideScratch = 32 << 20;     // The transformed tiles of a step take this many bytes.
constexpr int64_t kTilesOfItem = 96;           // A work item of a matrix product has this many tiles.

// The sizes of a convolution. x is [batch, rows, columns, inputs of all groups], the weights are [3, 3, inputs, outputs of
// all groups].
template <typename Filtering>
struct Sizes {
  static constexpr int64_t kTile = Filtering::kTile, kPlaces = Filtering::kSide * Filtering::kSide;

  Sizes(const TensorShape& x, int64_t inputs, int64_t all_outputs)
      : batch(x.dim_size(0)), rows(x.dim_size(1)), columns(x.dim_size(2)), all_inputs(x.dim_size(3)), all_outputs(all_outputs),
        inputs(inputs), groups(all_inputs / inputs), outputs(all_outputs / groups), tile_rows((rows + kTile - 1) / kTile),
        tile_columns((columns + kTile - 1) / kTile), tiles(batch * tile_rows * tile_columns),
        is_wide(inputs * outputs > kWide), block(block_of(inputs + outputs)), blocks((tiles + block - 1) / block) {}

  int64_t block_of(int64_t channels) const {
    if (is_wide) return std::min(std::max(kWideScratch / (4 * kPlaces * channels), kLeastTiles), std::max<int64_t>(tiles, 1));
    const int64_t most = std::max(kScratch / (4 * kPlaces * channels), kLeastTiles), shared = (tiles + kBlocks - 1) / kBlocks;
    return (std::min(most, std::max<int64_t>(shared, 1)) + kTilesStep - 1) / kTilesStep * kTilesStep;
  }

  // Returns the distance between two places of the transformed tiles of a block. The extra vector avoids distances of whole
  // pages, because such addresses share cache lines.
  int64_t place(int64_t width) const { return block * width + kVector; }

  int64_t batch, rows, columns, all_inputs, all_outputs;
  int64_t inputs, groups, outputs;  // groups, and the channels of each group
  int64_t tile_rows, tile_columns, tiles;
  bool is_wide;
  int64_t block, blocks;  // number of tiles in a block, and number of blocks
};

// Returns whether to use tiles of 4 x 4 results. The answer must not depend on the batch size, because micro-batches of
// another size must give the same bits.
inline bool are_fours_fewer(const TensorShape& x, int64_t inputs, int64_t outputs) {
  auto products = [&x](int64_t tile, int64_t side) {
    return (x.dim_size(1) + tile - 1) / tile * ((x.dim_size(2) + tile - 1) / tile) * side * side;
  };
  const bool fewer = products(InFours::kTile, InFours::kSide) * 100 <= products(InTwos::kTile, InTwos::kSide) * kFewer;
  return fewer && inputs * outputs <= kWeightsOfFours;
}

// Calls `use(sample, tile row, first tile column, last tile column, tile number)` for each run of adjacent tiles in a row.
template <typename Filtering, typename Use>
void for_runs(const Sizes<Filtering>& sizes, int64_t begin, int64_t end, Use use) {
  for (int64_t t = begin; t < end;) {
    const int64_t row = t / sizes.tile_columns, column = t % sizes.tile_columns;
    const int64_t run = std::min(end - t, sizes.tile_columns - column);
    use(row / sizes.tile_rows, row % sizes.tile_rows, column, column + run, t - begin);
    t += run;
  }
}

// A row of an image, or zeros outside the image.
struct ImageRow {
  ImageRow() = default;
  ImageRow(const float* image, int64_t row, int64_t rows, int64_t columns, int64_t channels)
      : start(image + std::min(std::max<int64_t>(row, 0), rows - 1) * columns * channels), columns(columns), channels(channels),
        mask(row < 0 || row >= rows ? 0 : 0xFFFF) {}

  __m512 pixel(int64_t column) const {
    const __mmask16 inside = static_cast<uint64_t>(column) < static_cast<uint64_t>(columns) ? mask : 0;
    return _mm512_maskz_loadu_ps(inside, start + column * channels);
  }

  // Prefetches the pixel that is `rows` rows further down.
  void prefetch(int64_t column, int64_t rows) const {
    _mm_prefetch(start + (column + rows * columns) * channels, _MM_HINT_T0);
  }

  const float* start;
  int64_t columns, channels;
  __mmask16 mask;
};

// Transforms the inputs of adjacent tiles, for one vector of channels. In `to`, tiles are `width` numbers apart, and places
// are `place` numbers apart.
template <typename Filtering>
void transform_row(const ImageRow (&rows)[Filtering::kSide], int64_t first, int64_t last, int64_t width, int64_t place, float* to) {
  constexpr int kTile = Filtering::kTile, kSide = Filtering::kSide;
  __m512 own[kSide][kSide];  // columns
  auto read = [&](int64_t tile, int j) {
    __m512 column[kSide];
#pragma GCC unroll 6
    for (int i = 0; i < kSide; ++i) column[i] = rows[i].pixel(tile * kTile - 1 + j);
    Filtering::of_inputs(column, own[j]);
  };
  for (int j = 0; j < kSide - kTile; ++j) read(first, j);
  for (int64_t t = first; t < last; ++t, to += width) {
#pragma GCC unroll 4
    for (int j = kSide - kTile; j < kSide; ++j) {
#pragma GCC unroll 4
      for (int i = kSide - kTile; i < kSide; ++i) rows[i].prefetch(t * kTile - 1 + j, kTile);
      read(t, j);
    }
    float* line_of = to;
#pragma GCC unroll 6
    for (int i = 0; i < kSide; ++i) {
      __m512 line[kSide], transformed[kSide];
#pragma GCC unroll 6
      for (int j = 0; j < kSide; ++j) line[j] = own[j][i];
      Filtering::of_inputs(line, transformed);
#pragma GCC unroll 6
      for (int j = 0; j < kSide; ++j, line_of += place) _mm512_storeu_ps(line_of, transformed[j]);
#pragma GCC unroll 2
      for (int j = 0; j < kSide - kTile; ++j) own[j][i] = line[kTile + j];
    }
  }
}

// Adjacent rows of an image.
template <int count>
struct ImageRows {
  ImageRows(const float* image, int64_t first, int64_t rows, int64_t columns, int64_t channels) {
    for (int k = 0; k < count; ++k) own[k] = ImageRow(image, first + k, rows, columns, channels);
  }

  ImageRow own[count];
};

// Transforms the inputs of tiles, B^T x B, to [places, tiles of a block, width], for `width` channels of x.
template <typename Filtering>
void transform_inputs(const float* x, const Sizes<Filtering>& sizes, int64_t begin, int64_t end, int64_t width, float* to) {
  for_runs(sizes, begin, end, [&](int64_t n, int64_t row, int64_t first, int64_t last, int64_t tile) {
    for (int64_t v = 0; v < width; v += kVector) {
      const ImageRows<Filtering::kSide> read(x + n * sizes.rows * sizes.columns * sizes.all_inputs + v, row * sizes.kTile - 1,
                                             sizes.rows, sizes.columns, sizes.all_inputs);
      transform_row<Filtering>(read.own, first, last, width, sizes.place(width), to + tile * width + v);
    }
  });
}

// Computes `rows` by `columns` results of a tile, A^T m A, for one vector of channels. `below` is the distance
// between rows of y.
template <typename Filtering>
inline void transform_tile(const float* from, int64_t place, float* y, int64_t rows, int64_t columns, int64_t below,
                           int64_t channels) {
  constexpr int kTile = Filtering::kTile, kSide = Filtering::kSide;
  __m512 lines[kTile][kSide];
#pragma GCC unroll 6
  for (int j = 0; j < kSide; ++j) {
    __m512 column[kSide], results[kTile];
#pragma GCC unroll 6
    for (int i = 0; i < kSide; ++i) column[i] = _mm512_loadu_ps(from + (i * kSide + j) * place);
    Filtering::to_results(column, results);
#pragma GCC unroll 4
    for (int i = 0; i < kTile; ++i) lines[i][j] = results[i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < kTile; ++i) {
    if (i == rows) return;
    __m512 results[kTile];
    Filtering::to_results(lines[i], results);
#pragma GCC unroll 4
    for (int j = 0; j < kTile; ++j) {
      if (j < columns) _mm512_storeu_ps(y + i * below + j * channels, results[j]);
    }
  }
}

// Transforms [places, tiles of a block, width] to the results of tiles in y, for `width` channels.
template <typename Filtering>
void transform_outputs(const float* from, const Sizes<Filtering>& sizes, int64_t begin, int64_t end, int64_t width, float* y) {
  constexpr int64_t kTile = Filtering::kTile;
  const int64_t channels = sizes.all_outputs, below = sizes.columns * channels, place = sizes.place(width);
  for_runs(sizes, begin, end, [=, &sizes](int64_t n, int64_t row, int64_t first, int64_t last, int64_t tile) {
    float* result = y + ((n * sizes.rows + row * kTile) * sizes.columns + first * kTile) * channels;
    const int64_t rows = std::min(kTile, sizes.rows - row * kTile);
    for (int64_t t = first; t < last; ++t, ++tile, result += kTile * channels) {
      const int64_t columns = std::min(kTile, sizes.columns - t * kTile);
      for (int64_t v = 0; v < width; v += kVector) {
        transform_tile<Filtering>(from + tile * width + v, place, result + v, rows, columns, below, channels);
      }
    }
  });
}

// Returns the index of the element [row, column] of a matrix that is stored in panels of `panel` columns.
inline int64_t panel_place(int64_t row, int64_t column, int64_t rows, int64_t panel) {
  return (column / panel * rows + row) * panel + column % panel;
}

// Transforms the gradients dy of adjacent tiles, A dy A^T, for one vector of channels. In `to`, tiles are `width` numbers
// apart, and places are `place` numbers apart.
template <typename Filtering>
void transform_row_of_gradients(const ImageRow (&rows)[Filtering::kTile], int64_t first, int64_t last, int64_t width, int64_t place,
                                float* to) {
  constexpr int kTile = Filtering::kTile, kSide = Filtering::kSide;
  for (int64_t t = first; t < last; ++t, to += width) {
    __m512 own[kTile][kSide];  // columns
#pragma GCC unroll 4
    for (int j = 0; j < kTile; ++j) {
      __m512 column[kTile];
#pragma GCC unroll 4
      for (int i = 0; i < kTile; ++i) {
        rows[i].prefetch(t * kTile + j, kTile);
        column[i] = rows[i].pixel(t * kTile + j);
      }
      Filtering::of_gradients(column, own[j]);
    }
    float* line_of = to;
#pragma GCC unroll 6
    for (int i = 0; i < kSide; ++i) {
      __m512 line[kTile], transformed[kSide];
#pragma GCC unroll 4
      for (int j = 0; j < kTile; ++j) line[j] = own[j][i];
      Filtering::of_gradients(line, transformed);
#pragma GCC unroll 6
      for (int j = 0; j < kSide; ++j, line_of += place) _mm512_storeu_ps(line_of, transformed[j]);
    }
  }
}

// Transforms the gradients dy of tiles to [places, panels of [tiles of a block, panel]].
template <typename Filtering>
void transform_gradients(const float* dy, const Sizes<Filtering>& sizes, int64_t begin, int64_t end, int64_t panel, float* to) {
  for_runs(sizes, begin, end, [&](int64_t n, int64_t row, int64_t first, int64_t last, int64_t tile) {
    for (int64_t v = 0; v < sizes.outputs; v += kVector) {
      const ImageRows<Filtering::kTile> read(dy + n * sizes.rows * sizes.columns * sizes.all_outputs + v, row * sizes.kTile,
                                             sizes.rows, sizes.columns, sizes.all_outputs);
      transform_row_of_gradients<Filtering>(read.own, first, last, panel, sizes.place(sizes.outputs),
                                            to + panel_place(tile, v, sizes.block, panel));
    }
  });
}

// Returns the distance between two places of the transformed weights of a group. The extra vector is explained at
// Sizes::place.
inline int64_t weights_place(int64_t inputs, int64_t outputs) { return inputs * outputs + kVector; }

// A convolution's weights [3, 3, channels of a group, filters of all groups].
struct Kernels {
  Kernels(const Tensor& weights, int64_t groups)
      : first(weights.flat<float>().data()), of_group(weights.dim_size(2)), all_filters(weights.dim_size(3)),
        filters(all_filters / groups) {}

  const float* first;
  int64_t of_group, all_filters, filters;  // channels and filters of a group
};

// Transposes 16 x 16 numbers. Rows are `row` numbers apart in `from` and `to_row` numbers apart in `to`.
void transpose(const float* from, int64_t row, float* to, int64_t to_row) {
  __m512 a[kVector], b[kVector];
#pragma GCC unroll 16
  for (int i = 0; i < kVector; ++i) a[i] = _mm512_loadu_ps(from + i * row);
#pragma GCC unroll 8
  for (int i = 0; i < kVector; i += 2) {  // interleave pairs of rows, then fours, within quarters of a vector
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kVector; i += 4) {
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k) {
      const __m512d low = _mm512_castps_pd(b[i + k]), high = _mm512_castps_pd(b[i + 2 + k]);
      a[i + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
      a[i + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // collect the quarters: row 4 q + i of the result has number 4 q + i of each row
    const __m512 first = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), second = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88),
                 third = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xDD), fourth = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xDD);
    _mm512_storeu_ps(to + i * to_row, _mm512_shuffle_f32x4(first, second, 0x88));
    _mm512_storeu_ps(to + (8 + i) * to_row, _mm512_shuffle_f32x4(first, second, 0xDD));
    _mm512_storeu_ps(to + (4 + i) * to_row, _mm512_shuffle_f32x4(third, fourth, 0x88));
    _mm512_storeu_ps(to + (12 + i) * to_row, _mm512_shuffle_f32x4(third, fourth, 0xDD));
  }
}

// Transforms the weights of a group, G w G^T, to [places, panels of [inputs, panel]], for 16 channels beginning with
// `channel`. For the gradient of the inputs, `turned` is true: kernels are rotated by 180 degrees and map filters to
// channels.
template <typename Filtering>
void transform_weights(const Kernels& kernels, int64_t group, int64_t channel, bool turned, int64_t panel, float* to) {
  constexpr int kSide = Filtering::kSide, kPlaces = kSide * kSide;
  const int64_t tap = kernels.of_group * kernels.all_filters, place = weights_place(kernels.of_group, kernels.filters);
  float numbers[kPlaces * kVector * kVector];  // [places, channels, filters]
  for (int64_t k = 0; k < kernels.filters; k += kVector) {
    for (int64_t c = 0; c < kVector; ++c) {
      const float* own = kernels.first + (channel + c) * kernels.all_filters + group * kernels.filters + k;
      __m512 columns[3][kSide];
      for (int j = 0; j < 3; ++j) {
        __m512 taps[3];
        for (int i = 0; i < 3; ++i) taps[i] = _mm512_loadu_ps(own + (turned ? 8 - i * 3 - j : i * 3 + j) * tap);
        Filtering::of_weights(taps, columns[j]);
      }
      for (int i = 0; i < kSide; ++i) {
        __m512 line[kSide];
        Filtering::of_weights({columns[0][i], columns[1][i], columns[2][i]}, line);
        for (int j = 0; j < kSide; ++j) {
          _mm512_storeu_ps(turned ? numbers + ((i * kSide + j) * kVector + c) * kVector
                                  : to + (i * kSide + j) * place + panel_place(channel + c, k, kernels.of_group, panel),
                           line[j]);
        }
      }
    }
    for (int64_t i = 0; turned && i < kPlaces; ++i) {
      transpose(numbers + i * kVector * kVector, kVector, to + i * place + panel_place(k, channel, kernels.filters, panel), panel);
    }
  }
}

// Computes m [tiles, columns] = v [tiles, depth] u [depth, columns] for one place. u is stored in panels of `vectors` x 16
// columns.
template <int vectors>
void multiply_place(const float* v, int64_t tiles, const float* u, int64_t depth, int64_t columns, float* m) {
  constexpr int64_t kWidth = vectors * kVector;
  for (int64_t k = 0; k < columns; k += kWidth) {
    multiply_panel<vectors>(v, tiles, u + k * depth, kWidth, depth, 0xFFFF, [&](int64_t row, auto& sums) {
      constexpr int kRows = sizeof(sums) / sizeof(sums[0]);
#pragma GCC unroll 24
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int i = 0; i < vectors; ++i) _mm512_storeu_ps(m + (row + r) * columns + k + i * kVector, sums[r][i]);
      }
    });
  }
}

// The rules that all three operations have in common. The channels and the filters of a group must fill whole vectors.
struct GroupRules {
  template <typename Context>
  absl::Status read(Context* context) {
    return read_size(context, "groups", &groups);
  }

  void check(Shapes* shapes) const {
    shapes->require_positive("cif");
    shapes->divide('c', 'i', groups);
    shapes->divide('i', 'u', kVector);
    shapes->divide('f', 'v', groups * kVector);
  }

  int64_t groups;
};

// The rules of the convolution or, if `turned` is true, of the gradient of its inputs.
template <bool turned>
struct ConvRules : GroupRules {
  void check(Shapes* shapes) const {
    shapes->input(0, turned ? "nhwf" : "nhwc");
    shapes->input(1, "33if");
    GroupRules::check(shapes);
    shapes->output(0, turned ? "nhwc" : "nhwf");
  }
};

struct WeightsRules : GroupRules {
  void check(Shapes* shapes) const {
    shapes->input(0, "nhwc");
    shapes->input(1, "nhwf");
    GroupRules::check(shapes);
    shapes->output(0, "33if");
  }
};

// Returns memory for `numbers` numbers. Each thread has its own, and keeps it from one block to the next.
float* scratch(int64_t numbers) {
  static thread_local std::vector<float> kept;
  if (static_cast<int64_t>(kept.size()) < numbers) kept.resize(numbers);
  return kept.data();
}

tensorflow::Status allocate_floats(OpKernelContext* context, int64_t numbers, Tensor* tensor) {
  return context->allocate_temp(tensorflow::DT_FLOAT, TensorShape({numbers}), tensor);
}

// Calls `work(begin, end)` on threads for ranges of the tiles from `first` to `last`. Each tile has `channels` channels.
template <typename Filtering, typename Work>
void in_tiles(OpKernelContext* context, int64_t first, int64_t last, int64_t channels, const Work& work) {
  const int64_t cost = kTilesStep * channels * Sizes<Filtering>::kPlaces / 10 + 1, steps = (last - first + kTilesStep - 1) / kTilesStep;
  in_threads(context, steps, cost, [&](int64_t begin, int64_t end) {
    work(first + begin * kTilesStep, std::min(first + end * kTilesStep, last));
  });
}

// The convolution or, if `turned` is true, the gradient of its inputs.
template <bool turned>
class WinogradConv : public CheckedKernel<ConvRules<turned>> {
 public:
  using CheckedKernel<ConvRules<turned>>::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor &input = context->input(0), &weights = context->input(1);
    const Kernels kernels(weights, this->rules_.groups);
    const int64_t inputs = turned ? kernels.filters : kernels.of_group, outputs = turned ? kernels.of_group : kernels.filters;
    if (are_fours_fewer(input.shape(), inputs, outputs)) {
      convolve<InFours>(context, input, kernels, inputs, outputs);
    } else {
      convolve<InTwos>(context, input, kernels, inputs, outputs);
    }
  }

 private:
  template <typename Filtering>
  void convolve(OpKernelContext* context, const Tensor& input, const Kernels& kernels, int64_t inputs, int64_t outputs) {
    constexpr int64_t kPlaces = Sizes<Filtering>::kPlaces;
    const int64_t groups = this->rules_.groups;
    const Sizes<Filtering> sizes(input.shape(), inputs, outputs * groups);
    TensorShape shape = input.shape();
    shape.set_dim(3, sizes.all_outputs);
    Tensor *output, transformed;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
    const int64_t of_group = kPlaces * weights_place(inputs, outputs), panel = outputs % kPanel ? kVector : kPanel;
    OP_REQUIRES_OK(context, allocate_floats(context, groups * of_group, &transformed));
    float* const u = transformed.flat<float>().data();
    const int64_t pieces = kernels.of_group / kVector;
    in_threads(context, groups * pieces, kernels.filters * 40, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        transform_weights<Filtering>(kernels, k / pieces, k % pieces * kVector, turned, panel, u + k / pieces * of_group);
      }
    });
    const float* x = input.flat<float>().data();
    float* y = output->flat<float>().data();
    if (sizes.is_wide) {
      for (int64_t group = 0; group < groups; ++group) {
        convolve_steps(context, sizes, x + group * inputs, u + group * of_group, panel, y + group * outputs);
      }
      return;
    }
    const int64_t cost = sizes.block * inputs * outputs / 4 + 1;
    in_threads(context, groups * sizes.blocks, cost, [&](int64_t begin, int64_t end) {
      float* const v = scratch(kPlaces * (sizes.place(inputs) + sizes.place(outputs)));
      float* const m = v + kPlaces * sizes.place(inputs);
      for (int64_t k = begin; k < end; ++k) {
        const int64_t group = k / sizes.blocks, first = k % sizes.blocks * sizes.block;
        const int64_t last = std::min(first + sizes.block, sizes.tiles);
        transform_inputs(x + group * inputs, sizes, first, last, inputs, v);
        for (int64_t place = 0; place < kPlaces; ++place) {
          const float* own = u + group * of_group + place * weights_place(inputs, outputs);
          multiply(v + place * sizes.place(inputs), last - first, own, sizes, panel, m + place * sizes.place(outputs));
        }
        transform_outputs(m, sizes, first, last, outputs, y + group * outputs);
      }
    });
  }

  template <typename Filtering>
  static void multiply(const float* v, int64_t tiles, const float* u, const Sizes<Filtering>& sizes, int64_t panel, float* m) {
    if (panel == kPanel) {
      multiply_place<2>(v, tiles, u, sizes.inputs, sizes.outputs, m);
    } else {
      multiply_place<1>(v, tiles, u, sizes.inputs, sizes.outputs, m);
    }
  }

  // Computes the convolution of a group with large weights. The threads share each step.
  template <typename Filtering>
  static void convolve_steps(OpKernelContext* context, const Sizes<Filtering>& sizes, const float* x, const float* u, int64_t panel,
                             float* y) {
    constexpr int64_t kPlaces = Sizes<Filtering>::kPlaces;
    const int64_t inputs = sizes.inputs, outputs = sizes.outputs;
    Tensor kept;
    OP_REQUIRES_OK(context, allocate_floats(context, kPlaces * (sizes.place(inputs) + sizes.place(outputs)), &kept));
    float *const v = kept.flat<float>().data(), *const m = v + kPlaces * sizes.place(inputs);
    for (int64_t first = 0; first < sizes.tiles; first += sizes.block) {
      const int64_t last = std::min(first + sizes.block, sizes.tiles);
      in_tiles<Filtering>(context, first, last, inputs, [&](int64_t begin, int64_t end) {
        transform_inputs(x, sizes, begin, end, inputs, v + (begin - first) * inputs);
      });
      const int64_t items = (last - first + kTilesOfItem - 1) / kTilesOfItem;
      in_threads(context, kPlaces * items, kTilesOfItem * inputs * outputs / 64 + 1, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k) {
          const int64_t place = k / items, tile = k % items * kTilesOfItem;
          multiply(v + place * sizes.place(inputs) + tile * inputs, std::min(kTilesOfItem, last - first - tile),
                   u + place * weights_place(inputs, outputs), sizes, panel, m + place * sizes.place(outputs) + tile * outputs);
        }
      });
      in_tiles<Filtering>(context, first, last, outputs, [&](int64_t begin, int64_t end) {
        transform_outputs(m + (begin - first) * outputs, sizes, begin, end, outputs, y);
      });
    }
  }
};

REGISTER_OP("EmulatorWinogradConv2D")
    .Input("x: float").Input("weights: float")
    .Output("y: float")
    .Attr("groups: int >= 1")
    .SetShapeFn(set_shapes<ConvRules<false>>);
REGISTER_KERNEL_BUILDER(Name("EmulatorWinogradConv2D").Device(tensorflow::DEVICE_CPU), WinogradConv<false>);

REGISTER_OP("EmulatorWinogradConv2DBackpropInput")
    .Input("dy: float").Input("weights: float")
    .Output("dx: float")
    .Attr("groups: int >= 1")
    .SetShapeFn(set_shapes<ConvRules<true>>);
REGISTER_KERNEL_BUILDER(Name("EmulatorWinogradConv2DBackpropInput").Device(tensorflow::DEVICE_CPU), WinogradConv<true>);

// Computes sums [rows, vectors * 16] += a^T b over `depth` tiles, for one panel of b. `a_row` is the distance between tiles
// in a. If `begin` is true, the sums are overwritten instead.
template <int rows, int vectors>
inline void add_outer(const float* a, int64_t a_row, const float* b, int64_t depth, bool begin, float* sums) {
  constexpr int64_t kRow = vectors * kVector;
  __m512 own[rows][vectors];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) own[r][v] = begin ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + r * kRow + v * kVector);
  }
  for (int64_t k = 0; k < depth; ++k, a += a_row, b += kRow) add_step(a, b, own);
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) _mm512_storeu_ps(sums + r * kRow + v * kVector, own[r][v]);
  }
}

class WinogradWeightsGradient : public CheckedKernel<WeightsRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor &input = context->input(0), &above = context->input(1);
    const int64_t channels = input.dim_size(3), filters = above.dim_size(3), groups = rules_.groups;
    if (are_fours_fewer(input.shape(), channels / groups, filters / groups)) {
      differentiate<InFours>(context, input, above);
    } else {
      differentiate<InTwos>(context, input, above);
    }
  }

 private:
  template <typename Filtering>
  void differentiate(OpKernelContext* context, const Tensor& input, const Tensor& above) {
    constexpr int64_t kPlaces = Sizes<Filtering>::kPlaces;
    const int64_t filters = above.dim_size(3), groups = rules_.groups;
    const Sizes<Filtering> sizes(input.shape(), input.dim_size(3) / groups, filters);
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({3, 3, sizes.inputs, filters}), &output));
    const float *x = input.flat<float>().data(), *dy = above.flat<float>().data();
    const int64_t panel = sizes.outputs % kPanel ? kVector : kPanel;
    const int64_t width = std::min(sizes.inputs, kInputsOfItem), pieces = (sizes.inputs + width - 1) / width;
    // Every part must have at least one tile, because the first tiles initialise the sums of a part.
    const int64_t shared = sizes.is_wide ? 1 : std::min(kParts / (pieces * groups), sizes.blocks);
    const int64_t wanted = std::max<int64_t>({shared, (sizes.tiles + kTilesOfPart - 1) / kTilesOfPart, 1});
    const int64_t tiles_of_part = (sizes.tiles + wanted - 1) / wanted;
    const int64_t parts = tiles_of_part ? (sizes.tiles + tiles_of_part - 1) / tiles_of_part : 0;
    const int64_t of_place = weights_place(sizes.inputs, sizes.outputs);
    const int64_t of_group = kPlaces * of_place;  // the sums are [parts, groups, places, panels of [inputs, panel]]
    Tensor summed;
    OP_REQUIRES_OK(context, allocate_floats(context, parts * groups * of_group, &summed));
    float* const sums = summed.flat<float>().data();
    if (sizes.is_wide) {
      for (int64_t k = 0; k < parts * groups; ++k) {
        const int64_t group = k % groups, start = k / groups * tiles_of_part;
        sum_steps(context, sizes, x + group * sizes.inputs, dy + group * sizes.outputs, panel, start,
                  std::min(start + tiles_of_part, sizes.tiles), sums + k * of_group);
        if (!context->status().ok()) return;
      }
    } else {
      const int64_t cost = tiles_of_part * width * sizes.outputs / 4 + 1;
      in_threads(context, parts * groups * pieces, cost, [&](int64_t begin, int64_t end) {
        float* const v = scratch(kPlaces * (sizes.place(width) + sizes.place(sizes.outputs)));
        float* const m = v + kPlaces * sizes.place(width);
        for (int64_t k = begin; k < end; ++k) {
          const int64_t piece = k % pieces, group = k / pieces % groups, part = k / (pieces * groups);
          const int64_t own = std::min(width, sizes.inputs - piece * width);
          float* to = sums + (part * groups + group) * of_group + piece * width * panel;
          const int64_t start = part * tiles_of_part, end_of_part = std::min(start + tiles_of_part, sizes.tiles);
          for (int64_t first = start; first < end_of_part; first += sizes.block) {
            const int64_t last = std::min(first + sizes.block, end_of_part);
            transform_inputs(x + group * sizes.inputs + piece * width, sizes, first, last, own, v);
            transform_gradients(dy + group * sizes.outputs, sizes, first, last, panel, m);
            for (int64_t place = 0; place < kPlaces; ++place) {
              add_place(sizes, v + place * sizes.place(own), own, own, m + place * sizes.place(sizes.outputs), panel,
                        last - first, first == start, to + place * of_place);
            }
          }
        }
      });
    }
    float* dw = output->flat<float>().data();
    const int64_t vectors = sizes.outputs / kVector;
    in_threads(context, groups * vectors, sizes.inputs * parts * kPlaces * kVector + 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t group = k / vectors, o = k % vectors * kVector;
        for (int64_t c = 0; c < sizes.inputs; ++c) {
          Numbers du[kPlaces];
          for (int64_t part = 0; part < parts; ++part) {
            const float* own = sums + (part * groups + group) * of_group + panel_place(c, o, sizes.inputs, panel);
            for (int64_t i = 0; i < kPlaces; ++i, own += of_place) du[i] = du[i] + Numbers(own);
          }
          gather<Filtering>(du, sizes.inputs * filters, dw + c * filters + group * sizes.outputs + o);
        }
      }
    });
  }

  // Computes the sums of a part for a group with large weights. The threads share each step.
  template <typename Filtering>
  static void sum_steps(OpKernelContext* context, const Sizes<Filtering>& sizes, const float* x, const float* dy, int64_t panel,
                        int64_t start, int64_t end_of_part, float* sums) {
    constexpr int64_t kPlaces = Sizes<Filtering>::kPlaces;
    const int64_t inputs = sizes.inputs, outputs = sizes.outputs;
    Tensor kept;
    OP_REQUIRES_OK(context, allocate_floats(context, kPlaces * (sizes.place(inputs) + sizes.place(outputs)), &kept));
    float *const v = kept.flat<float>().data(), *const m = v + kPlaces * sizes.place(inputs);
    const int64_t pieces = (inputs + kInputsOfItem - 1) / kInputsOfItem;
    for (int64_t first = start; first < end_of_part; first += sizes.block) {
      const int64_t last = std::min(first + sizes.block, end_of_part);
      in_tiles<Filtering>(context, first, last, inputs + outputs, [&](int64_t begin, int64_t end) {
        transform_inputs(x, sizes, begin, end, inputs, v + (begin - first) * inputs);
        transform_gradients(dy, sizes, begin, end, panel, m + (begin - first) * panel);
      });
      in_threads(context, kPlaces * pieces, (last - first) * kInputsOfItem * outputs / 64 + 1, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k) {
          const int64_t place = k / pieces, c = k % pieces * kInputsOfItem;
          add_place(sizes, v + place * sizes.place(inputs) + c, inputs, std::min(kInputsOfItem, inputs - c),
                    m + place * sizes.place(outputs), panel, last - first, first == start,
                    sums + place * weights_place(inputs, outputs) + c * panel);
        }
      });
    }
  }

  // Computes sums [inputs, outputs] += v^T m for one place and `width` inputs. In v, tiles are `row` numbers apart. m and
  // the sums are stored in panels.
  template <typename Filtering>
  static void add_place(const Sizes<Filtering>& sizes, const float* v, int64_t row, int64_t width, const float* m, int64_t panel,
                        int64_t tiles, bool begin, float* sums) {
    if (panel == kPanel) {
      add_panels<8, 2>(sizes, v, row, width, m, tiles, begin, sums);
    } else {
      add_panels<16, 1>(sizes, v, row, width, m, tiles, begin, sums);
    }
  }

  template <int rows, int vectors, typename Filtering>
  static void add_panels(const Sizes<Filtering>& sizes, const float* v, int64_t row, int64_t width, const float* m, int64_t tiles,
                         bool begin, float* sums) {
    constexpr int64_t kWidth = vectors * kVector;
    for (int64_t k = 0; k < sizes.outputs; k += kWidth, m += sizes.block * kWidth, sums += sizes.inputs * kWidth) {
      for (int64_t c = 0; c < width; c += rows) add_outer<rows, vectors>(v + c, row, m, tiles, begin, sums + c * kWidth);
    }
  }

  // Computes G^T du G and writes the result to the taps of dw, which are `tap` numbers apart.
  template <typename Filtering>
  static void gather(const Numbers (&du)[Sizes<Filtering>::kPlaces], int64_t tap, float* dw) {
    constexpr int kSide = Filtering::kSide;
    Numbers columns[kSide][3];
    for (int j = 0; j < kSide; ++j) {
      Numbers column[kSide];
      for (int i = 0; i < kSide; ++i) column[i] = du[i * kSide + j];
      Filtering::to_weights(column, columns[j]);
    }
    for (int i = 0; i < 3; ++i) {
      Numbers line[kSide], taps[3];
      for (int j = 0; j < kSide; ++j) line[j] = columns[j][i];
      Filtering::to_weights(line, taps);
      for (int j = 0; j < 3; ++j) taps[j].store(dw + (i * 3 + j) * tap);
    }
  }
};

REGISTER_OP("EmulatorWinogradConv2DBackpropFilter")
    .Input("x: float").Input("dy: float")
    .Output("dw: float")
    .Attr("groups: int >= 1")
    .SetShapeFn(set_shapes<WeightsRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorWinogradConv2DBackpropFilter").Device(tensorflow::DEVICE_CPU), WinogradWeightsGradient);

}  // namespace
}  // namespace native

#endif  // __AVX512F__
