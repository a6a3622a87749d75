// Convolutions with 3 x 3 kernels, stride 1 and SAME padding, by Winograd's minimal filtering (filtering.h). A tile has 2 x
// 2 or 4 x 4 results. 2 x 2 results take 16 multiplications instead of 36, and 4 x 4 results 36 instead of 144.
//
//   y = A^T ((G w G^T) * (B^T x B)) A,   dw = G^T ((A dy A^T) * (B^T x B)) G,   dx: as y, from dy and rotated weights
//
// Each product * is a matrix product for each of the 4 x 4 or 6 x 6 places in a transformed tile. Sums over channels are in
// order. Sums over tiles are in FP32 within a part of the batch, and in double precision over the parts. The number of
// threads changes no bit, because the parts do not depend on it.

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
        panel(outputs % kPanel ? kLanes : kPanel), is_wide(inputs * outputs > kWide), block(block_of(inputs + outputs)), blocks((tiles + block - 1) / block) {}

  int64_t block_of(int64_t channels) const {
    if (is_wide) return std::min(std::max(kWideScratch / (4 * kPlaces * channels), kLeastTiles), std::max<int64_t>(tiles, 1));
    const int64_t most = std::max(kScratch / (4 * kPlaces * channels), kLeastTiles), shared = (tiles + kBlocks - 1) / kBlocks;
    return (std::min(most, std::max<int64_t>(shared, 1)) + kTilesStep - 1) / kTilesStep * kTilesStep;
  }

  // Returns the distance between two places of the transformed tiles of a block. The extra line avoids distances of whole
  // pages, because such addresses share cache lines.
  int64_t place(int64_t width) const { return block * width + kLine; }

  int64_t batch, rows, columns, all_inputs, all_outputs;
  int64_t inputs, groups, outputs;  // groups, and the channels of each group
  int64_t tile_rows, tile_columns, tiles;
  int64_t panel;  // number of outputs in a panel of matrices
  bool is_wide;
  int64_t block, blocks;  // number of tiles in a block, and number of blocks
};

// Calls `work` with the kind of tiles to use, 4 x 4 or 2 x 2 results. The choice must not depend on the batch size, because micro-batches of
// another size must give the same bits.
template <typename Work>
void with_filtering(const TensorShape& x, int64_t inputs, int64_t outputs, Work work) {
  auto products = [&x](auto filtering) {
    constexpr int64_t kTile = decltype(filtering)::kTile, kSide = decltype(filtering)::kSide;
    return (x.dim_size(1) + kTile - 1) / kTile * ((x.dim_size(2) + kTile - 1) / kTile) * kSide * kSide;
  };
  const bool fewer = products(InFours()) * 100 <= products(InTwos()) * kFewer;
  if (fewer && inputs * outputs <= kWeightsOfFours) return work(InFours());
  work(InTwos());
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

// A row of an image. Pixels outside the image are zeros.
struct ImageRow {
  ImageRow() = default;
  ImageRow(const float* image, int64_t row, int64_t rows, int64_t columns, int64_t channels)
      : start(image + std::clamp<int64_t>(row, 0, rows - 1) * columns * channels), columns(columns), channels(channels),
        seen(row < 0 || row >= rows ? 0 : columns) {}

  Lanes pixel(int64_t column) const {
    static constexpr float kZeros[kLanes] = {};
    return load(static_cast<uint64_t>(column) < static_cast<uint64_t>(seen) ? start + column * channels : kZeros);
  }

  // Prefetches the pixel that is `rows` rows further down.
  void prefetch(int64_t column, int64_t rows) const { __builtin_prefetch(start + (column + rows * columns) * channels); }

  const float* start;
  int64_t columns, channels, seen;
};

// The transformation of the inputs of a tile, B^T x B. They are kRead x kRead pixels, and begin kBefore before the results.
template <typename Filtering>
struct OfInputs {
  static constexpr int kRead = Filtering::kSide, kBefore = 1;
  static void apply(const Lanes (&x)[kRead], Lanes (&to)[Filtering::kSide]) { Filtering::of_inputs(x, to); }
};

// The transformation of the gradients dy of a tile, A dy A^T.
template <typename Filtering>
struct OfGradients {
  static constexpr int kRead = Filtering::kTile, kBefore = 0;
  static void apply(const Lanes (&dy)[kRead], Lanes (&to)[Filtering::kSide]) { Filtering::of_gradients(dy, to); }
};

// Transforms adjacent tiles, for one vector of channels. In `to`, tiles are `step` numbers apart, and places are `place`
// numbers apart.
template <typename Filtering, typename Transformation>
void transform_row(const ImageRow (&rows)[Transformation::kRead], int64_t first, int64_t last, int64_t step, int64_t place, float* to) {
  constexpr int kTile = Filtering::kTile, kSide = Filtering::kSide, kRead = Transformation::kRead;
  constexpr int kKept = kRead - kTile;  // the next tile reads these columns, too
  Lanes own[kRead][kSide];              // columns
  auto read = [&](int64_t column, int j) {
    Lanes pixels[kRead];
#pragma GCC unroll 6
    for (int i = 0; i < kRead; ++i) pixels[i] = rows[i].pixel(column);
    Transformation::apply(pixels, own[j]);
  };
  for (int j = 0; j < kKept; ++j) read(first * kTile - Transformation::kBefore + j, j);
  for (int64_t t = first; t < last; ++t, to += step) {
#pragma GCC unroll 4
    for (int j = kKept; j < kRead; ++j) {
      const int64_t column = t * kTile - Transformation::kBefore + j;
#pragma GCC unroll 4
      for (int i = kKept; i < kRead; ++i) rows[i].prefetch(column, kTile);
      read(column, j);
    }
    float* line_of = to;
#pragma GCC unroll 6
    for (int i = 0; i < kSide; ++i) {
      Lanes line[kRead], transformed[kSide];
#pragma GCC unroll 6
      for (int j = 0; j < kRead; ++j) line[j] = own[j][i];
      Transformation::apply(line, transformed);
#pragma GCC unroll 6
      for (int j = 0; j < kSide; ++j, line_of += place) store(transformed[j], line_of);
#pragma GCC unroll 2
      for (int j = 0; j < kKept; ++j) own[j][i] = line[kTile + j];
    }
  }
}

// Returns the index of the element [row, column] of a matrix that is stored in panels of `panel` columns.
inline int64_t panel_place(int64_t row, int64_t column, int64_t rows, int64_t panel) {
  return (column / panel * rows + row) * panel + column % panel;
}

// Transforms tiles to [places, panels of [tiles of a block, panel]], for `width` of the `channels` channels of x.
template <template <typename> typename Transformation, typename Filtering>
void transform(const float* x, int64_t channels, const Sizes<Filtering>& sizes, int64_t begin, int64_t end, int64_t width,
               int64_t panel, float* to) {
  using Own = Transformation<Filtering>;
  for_runs(sizes, begin, end, [&](int64_t n, int64_t row, int64_t first, int64_t last, int64_t tile) {
    for (int64_t v = 0; v < width; v += kLanes) {
      const float* const image = x + n * sizes.rows * sizes.columns * channels + v;
      ImageRow rows[Own::kRead];
      for (int i = 0; i < Own::kRead; ++i) {
        rows[i] = ImageRow(image, row * sizes.kTile - Own::kBefore + i, sizes.rows, sizes.columns, channels);
      }
      transform_row<Filtering, Own>(rows, first, last, panel, sizes.place(width), to + panel_place(tile, v, sizes.block, panel));
    }
  });
}

// Computes `rows` by `columns` results of a tile, A^T m A, for one vector of channels. `below` is the distance
// between rows of y.
template <typename Filtering>
inline void transform_tile(const float* from, int64_t place, float* y, int64_t rows, int64_t columns, int64_t below,
                           int64_t channels) {
  constexpr int kTile = Filtering::kTile, kSide = Filtering::kSide;
  Lanes lines[kTile][kSide];
#pragma GCC unroll 6
  for (int j = 0; j < kSide; ++j) {
    Lanes column[kSide], results[kTile];
#pragma GCC unroll 6
    for (int i = 0; i < kSide; ++i) column[i] = load(from + (i * kSide + j) * place);
    Filtering::to_results(column, results);
#pragma GCC unroll 4
    for (int i = 0; i < kTile; ++i) lines[i][j] = results[i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < kTile; ++i) {
    if (i == rows) return;
    Lanes results[kTile];
    Filtering::to_results(lines[i], results);
#pragma GCC unroll 4
    for (int j = 0; j < kTile; ++j) {
      if (j < columns) store(results[j], y + i * below + j * channels);
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
      for (int64_t v = 0; v < width; v += kLanes) {
        transform_tile<Filtering>(from + tile * width + v, place, result + v, rows, columns, below, channels);
      }
    }
  });
}

// Returns the distance between two places of the transformed weights of a group. The extra line is explained at
// Sizes::place.
inline int64_t weights_place(int64_t inputs, int64_t outputs) { return inputs * outputs + kLine; }

// A convolution's weights [3, 3, channels of a group, filters of all groups].
struct Kernels {
  Kernels(const Tensor& weights, int64_t groups)
      : first(weights.flat<float>().data()), of_group(weights.dim_size(2)), all_filters(weights.dim_size(3)),
        filters(all_filters / groups) {}

  const float* first;
  int64_t of_group, all_filters, filters;  // channels and filters of a group
};

// Transforms the weights of a group, G w G^T, to [places, panels of [inputs, panel]], for a vector of channels beginning
// with `channel`. For the gradient of the inputs, `turned` is true: kernels are rotated by 180 degrees and map filters to
// channels.
template <typename Filtering>
void transform_weights(const Kernels& kernels, int64_t group, int64_t channel, bool turned, int64_t panel, float* to) {
  constexpr int kSide = Filtering::kSide, kPlaces = kSide * kSide;
  const int64_t tap = kernels.of_group * kernels.all_filters, place = weights_place(kernels.of_group, kernels.filters);
  float numbers[kPlaces * kLanes * kLanes];  // [places, channels, filters]
  for (int64_t k = 0; k < kernels.filters; k += kLanes) {
    for (int64_t c = 0; c < kLanes; ++c) {
      const float* own = kernels.first + (channel + c) * kernels.all_filters + group * kernels.filters + k;
      Lanes columns[3][kSide];
      for (int j = 0; j < 3; ++j) {
        Lanes taps[3];
        for (int i = 0; i < 3; ++i) taps[i] = load(own + (turned ? 8 - i * 3 - j : i * 3 + j) * tap);
        Filtering::of_weights(taps, columns[j]);
      }
      for (int i = 0; i < kSide; ++i) {
        Lanes line[kSide];
        Filtering::of_weights({columns[0][i], columns[1][i], columns[2][i]}, line);
        for (int j = 0; j < kSide; ++j) {
          store(line[j], turned ? numbers + ((i * kSide + j) * kLanes + c) * kLanes
                                : to + (i * kSide + j) * place + panel_place(channel + c, k, kernels.of_group, panel));
        }
      }
    }
    for (int64_t i = 0; turned && i < kPlaces; ++i) {
      transpose(numbers + i * kLanes * kLanes, kLanes, to + i * place + panel_place(k, channel, kernels.filters, panel), panel);
    }
  }
}

// Computes m [tiles, columns] = v [tiles, depth] u [depth, columns] for one place. u is stored in panels.
template <int vectors>
void multiply_place(const float* v, int64_t tiles, const float* u, int64_t depth, int64_t columns, float* m) {
  constexpr int64_t kWidth = vectors * kLanes;
  for (int64_t k = 0; k < columns; k += kWidth) {
    multiply_panel<vectors>(v, tiles, u + k * depth, kWidth, depth, First(), [&](int64_t row, auto& sums) {
      store(sums, m + row * columns + k, columns);
    });
  }
}

// Computes sums [rows, vectors] += a^T b over `depth` tiles, for one panel of b. `a_row` is the distance between tiles in a.
// If `begin` is true, the sums are overwritten instead.
template <int rows, int vectors>
inline void add_outer(const float* a, int64_t a_row, const float* b, int64_t depth, bool begin, float* sums) {
  constexpr int64_t kRow = vectors * kLanes;
  Lanes own[rows][vectors];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) own[r][v] = begin ? Lanes{} : load(sums + r * kRow + v * kLanes);
  }
  for (int64_t k = 0; k < depth; ++k, a += a_row, b += kRow) add_step(a, b, own);
  store(own, sums, kRow);
}

// Computes sums [inputs, outputs] += v^T m for one place and `width` inputs. In v, tiles are `row` numbers apart. m and the
// sums are stored in panels.
template <int vectors, typename Filtering>
void add_place(const Sizes<Filtering>& sizes, const float* v, int64_t row, int64_t width, const float* m, int64_t tiles,
               bool begin, float* sums) {
  constexpr int kRows = kRegisters / 2 / vectors;
  constexpr int64_t kWidth = vectors * kLanes;
  static_assert(kWhole % kRows == 0);
  for (int64_t k = 0; k < sizes.outputs; k += kWidth, m += sizes.block * kWidth, sums += sizes.inputs * kWidth) {
    for (int64_t c = 0; c < width; c += kRows) add_outer<kRows, vectors>(v + c, row, m, tiles, begin, sums + c * kWidth);
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
    shapes->divide('i', 'u', kWhole);
    shapes->divide('f', 'v', groups * kWhole);
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

// Shares work among threads if there is a context, or else does it on the calling thread.
struct Sharing {
  template <typename Work>
  void operator()(int64_t count, int64_t cost, const Work& work) const {
    if (context) return in_threads(context, count, cost, work);
    work(0, count);
  }

  // Calls `work(begin, end)` for ranges of the tiles from `first` to `last`. Each tile has `channels` channels.
  template <typename Work>
  void tiles(int64_t first, int64_t last, int64_t channels, const Work& work) const {
    (*this)((last - first + kTilesStep - 1) / kTilesStep, kTilesStep * channels + 1, [&](int64_t begin, int64_t end) {
      work(first + begin * kTilesStep, std::min(first + end * kTilesStep, last));
    });
  }

  OpKernelContext* context;
};

tensorflow::Status allocate_floats(OpKernelContext* context, int64_t numbers, Tensor* tensor) {
  return context->allocate_temp(tensorflow::DT_FLOAT, TensorShape({numbers}), tensor);
}

// Calls `work(item, v, m, sharing)` for `items` items. v and m have memory for the transformed tiles of a block, of `width`
// and all outputs. The threads share the items or, if weights are large, the steps of each item.
template <typename Filtering, typename Work>
void for_items(OpKernelContext* context, const Sizes<Filtering>& sizes, int64_t items, int64_t width, int64_t cost, const Work& work) {
  const int64_t of_v = sizes.kPlaces * sizes.place(width), numbers = of_v + sizes.kPlaces * sizes.place(sizes.outputs);
  auto do_items = [&](int64_t begin, int64_t end, float* memory, const Sharing& sharing) {
    for (int64_t k = begin; k < end; ++k) work(k, memory, memory + of_v, sharing);
  };
  if (sizes.is_wide) {
    Tensor kept;
    OP_REQUIRES_OK(context, allocate_floats(context, numbers, &kept));
    return do_items(0, items, kept.flat<float>().data(), {context});
  }
  in_threads(context, items, cost, [&](int64_t begin, int64_t end) {
    static thread_local std::vector<float> kept;  // a thread keeps it from one block to the next
    if (static_cast<int64_t>(kept.size()) < numbers) kept.resize(numbers);
    do_items(begin, end, kept.data(), {nullptr});
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
    with_filtering(input.shape(), inputs, outputs, [&](auto filtering) {
      const Sizes<decltype(filtering)> sizes(input.shape(), inputs, outputs * this->rules_.groups);
      convolve(context, input, kernels, sizes);
    });
  }

 private:
  template <typename Filtering>
  static void convolve(OpKernelContext* context, const Tensor& input, const Kernels& kernels, const Sizes<Filtering>& sizes) {
    const int64_t inputs = sizes.inputs, outputs = sizes.outputs;
    TensorShape shape = input.shape();
    shape.set_dim(3, sizes.all_outputs);
    Tensor *output, transformed;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
    const int64_t of_place = weights_place(inputs, outputs), of_group = sizes.kPlaces * of_place;
    OP_REQUIRES_OK(context, allocate_floats(context, sizes.groups * of_group, &transformed));
    float* const weights = transformed.flat<float>().data();
    const int64_t pieces = kernels.of_group / kLanes;
    in_threads(context, sizes.groups * pieces, kernels.filters * 40, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        transform_weights<Filtering>(kernels, k / pieces, k % pieces * kLanes, turned, sizes.panel, weights + k / pieces * of_group);
      }
    });
    const float* const all = input.flat<float>().data();
    float* const results = output->flat<float>().data();
    const int64_t cost = sizes.block * inputs * outputs / 4 + 1, each = sizes.is_wide ? kTilesOfItem : sizes.block;
    for_items(context, sizes, sizes.groups * sizes.blocks, inputs, cost, [&](int64_t k, float* v, float* m, const Sharing& share) {
      const int64_t group = k / sizes.blocks, first = k % sizes.blocks * sizes.block;
      const int64_t last = std::min(first + sizes.block, sizes.tiles), items = (last - first + each - 1) / each;
      const float *const x = all + group * inputs, *const u = weights + group * of_group;
      float* const y = results + group * outputs;
      share.tiles(first, last, inputs, [&](int64_t begin, int64_t end) {
        transform<OfInputs>(x, sizes.all_inputs, sizes, begin, end, inputs, inputs, v + (begin - first) * inputs);
      });
      share(sizes.kPlaces * items, kTilesOfItem * inputs * outputs / 64 + 1, [&](int64_t begin, int64_t end) {
        const auto multiply = sizes.panel == kPanel ? multiply_place<2> : multiply_place<1>;
        for (int64_t i = begin; i < end; ++i) {
          const int64_t place = i / items, tile = i % items * each;
          multiply(v + place * sizes.place(inputs) + tile * inputs, std::min(each, last - first - tile), u + place * of_place, inputs,
                   outputs, m + place * sizes.place(outputs) + tile * outputs);
        }
      });
      share.tiles(first, last, outputs, [&](int64_t begin, int64_t end) {
        transform_outputs(m + (begin - first) * outputs, sizes, begin, end, outputs, y);
      });
    });
  }
};

class WinogradWeightsGradient : public CheckedKernel<WeightsRules> {
 public:
  using CheckedKernel::CheckedKernel;

 protected:
  void compute(OpKernelContext* context) override {
    const Tensor &input = context->input(0), &above = context->input(1);
    const int64_t inputs = input.dim_size(3) / rules_.groups, filters = above.dim_size(3);
    with_filtering(input.shape(), inputs, filters / rules_.groups, [&](auto filtering) {
      differentiate(context, input, above, Sizes<decltype(filtering)>(input.shape(), inputs, filters));
    });
  }

 private:
  template <typename Filtering>
  static void differentiate(OpKernelContext* context, const Tensor& input, const Tensor& above, const Sizes<Filtering>& sizes) {
    const int64_t inputs = sizes.inputs, outputs = sizes.outputs, groups = sizes.groups, panel = sizes.panel;
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({3, 3, inputs, sizes.all_outputs}), &output));
    const float *const x = input.flat<float>().data(), *const dy = above.flat<float>().data();
    // A work item has some channels of x of a group, and a part of the tiles. Every part must have at least one tile, because
    // the first tiles initialise its sums.
    const int64_t width = sizes.is_wide ? inputs : std::min(inputs, kInputsOfItem), pieces = (inputs + width - 1) / width;
    const int64_t shared = sizes.is_wide ? 1 : std::min(kParts / (pieces * groups), sizes.blocks);
    const int64_t wanted = std::max<int64_t>({shared, (sizes.tiles + kTilesOfPart - 1) / kTilesOfPart, 1});
    const int64_t tiles_of_part = (sizes.tiles + wanted - 1) / wanted;
    const int64_t parts = tiles_of_part ? (sizes.tiles + tiles_of_part - 1) / tiles_of_part : 0;
    const int64_t of_place = weights_place(inputs, outputs), of_group = sizes.kPlaces * of_place;
    Tensor summed;  // the sums, [parts, groups, places, panels of [inputs, panel]]
    OP_REQUIRES_OK(context, allocate_floats(context, parts * groups * of_group, &summed));
    float* const sums = summed.flat<float>().data();
    const int64_t items = parts * groups * pieces, cost = tiles_of_part * width * outputs / 4 + 1;
    for_items(context, sizes, items, width, cost, [&](int64_t k, float* v, float* m, const Sharing& share) {
      const int64_t piece = k % pieces, group = k / pieces % groups, part = k / (pieces * groups);
      const int64_t channel = piece * width, own = std::min(width, inputs - channel), runs = (own + kInputsOfItem - 1) / kInputsOfItem;
      const int64_t start = part * tiles_of_part, end_of_part = std::min(start + tiles_of_part, sizes.tiles);
      float* const to = sums + (part * groups + group) * of_group + channel * panel;
      for (int64_t first = start; first < end_of_part; first += sizes.block) {
        const int64_t last = std::min(first + sizes.block, end_of_part);
        share.tiles(first, last, own + outputs, [&](int64_t begin, int64_t end) {
          transform<OfInputs>(x + group * inputs + channel, sizes.all_inputs, sizes, begin, end, own, own, v + (begin - first) * own);
          transform<OfGradients>(dy + group * outputs, sizes.all_outputs, sizes, begin, end, outputs, panel,
                                 m + (begin - first) * panel);
        });
        share(sizes.kPlaces * runs, (last - first) * kInputsOfItem * outputs / 64 + 1, [&](int64_t begin, int64_t end) {
          const auto add = panel == kPanel ? add_place<2, Filtering> : add_place<1, Filtering>;
          for (int64_t i = begin; i < end; ++i) {
            const int64_t place = i / runs, c = i % runs * kInputsOfItem;
            add(sizes, v + place * sizes.place(own) + c, own, std::min(kInputsOfItem, own - c), m + place * sizes.place(outputs),
                last - first, first == start, to + place * of_place + c * panel);
          }
        });
      }
    });
    if (!context->status().ok()) return;
    float* const dw = output->flat<float>().data();
    const int64_t vectors = outputs / kLanes;
    in_threads(context, groups * vectors, inputs * parts * sizes.kPlaces * kLanes + 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t group = k / vectors, o = k % vectors * kLanes;
        for (int64_t c = 0; c < inputs; ++c) {
          Doubles du[sizes.kPlaces];
          for (int64_t part = 0; part < parts; ++part) {
            const float* own = sums + (part * groups + group) * of_group + panel_place(c, o, inputs, panel);
            for (int64_t i = 0; i < sizes.kPlaces; ++i, own += of_place) du[i] = du[i] + Doubles(own);
          }
          gather<Filtering>(du, inputs * sizes.all_outputs, dw + c * sizes.all_outputs + group * outputs + o);
        }
      }
    });
  }

  // Computes G^T du G and writes the result to the taps of dw, which are `tap` numbers apart.
  template <typename Filtering>
  static void gather(const Doubles (&du)[Sizes<Filtering>::kPlaces], int64_t tap, float* dw) {
    constexpr int kSide = Filtering::kSide;
    Doubles columns[kSide][3];
    for (int j = 0; j < kSide; ++j) {
      Doubles column[kSide];
      for (int i = 0; i < kSide; ++i) column[i] = du[i * kSide + j];
      Filtering::to_weights(column, columns[j]);
    }
    for (int i = 0; i < 3; ++i) {
      Doubles line[kSide], taps[3];
      for (int j = 0; j < kSide; ++j) line[j] = columns[j][i];
      Filtering::to_weights(line, taps);
      for (int j = 0; j < 3; ++j) taps[j].store(dw + (i * 3 + j) * tap);
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

REGISTER_OP("EmulatorWinogradConv2DBackpropFilter")
    .Input("x: float").Input("dy: float")
    .Output("dw: float")
    .Attr("groups: int >= 1")
    .SetShapeFn(set_shapes<WeightsRules>);
REGISTER_KERNEL_BUILDER(Name("EmulatorWinogradConv2DBackpropFilter").Device(tensorflow::DEVICE_CPU), WinogradWeightsGradient);

}  // namespace
}  // namespace native
