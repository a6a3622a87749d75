// Matrix products in tiles of any height, whose sums stay in registers.
//
// Every number of a product is one sum, whose terms are added in order. So its bits depend neither on the number of threads,
// nor on the tiles, nor on other rows.

#ifndef EMULATOR_NATIVE_PRODUCTS_H_
#define EMULATOR_NATIVE_PRODUCTS_H_

#include <type_traits>

#include "emulator/native/vector.h"
#include "emulator/native/windows.h"

namespace native {

constexpr int64_t kWhole = 16;              // Vectors and tiles divide channels in sixteens, on every processor.
constexpr int64_t kPanel = 2 * kLanes;      // A panel of b has two vectors of columns.
constexpr int64_t kStrip = 8 * kLanes;      // A strip has eight vectors of columns, in a product with one row.
constexpr int64_t kAhead = 32;              // Prefetch rows of b this far ahead; they are too far apart for the hardware.
constexpr int kShortTile = kRegisters / 8;  // Rows that remain after whole tiles are in tiles of this height.
// A single remaining row takes a third of the time of a whole tile. If there are registers left, the last tile takes it, too.
constexpr int kTallestTile = kRegisters > 16 ? kTileRows + 1 : 0;

// Reads one number of each cache line, in order, so that the hardware prefetches the other lines. Windows and tiles read out
// of order, and would wait for every line.
inline void touch(const float* from, int64_t count) {
  for (int64_t k = 0; k < count; k += kLine) static_cast<void>(*static_cast<const volatile float*>(from + k));
}

template <int rows, int vectors>
inline void clear(Lanes (&sums)[rows][vectors]) {
#pragma GCC unroll 24
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[r][v] = Lanes{};
  }
}

// Stores sums in rows that are `row` numbers apart.
template <int rows, int vectors>
inline void store(const Lanes (&sums)[rows][vectors], float* to, int64_t row) {
#pragma GCC unroll 24
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) store(sums[r][v], to + r * row + v * kLanes);
  }
}

// Adds one step of a product: sums [rows, vectors] += column of a * row of b. `of_a(r)` is a number of the column.
template <int rows, int vectors, typename OfA>
inline void add_step(OfA of_a, const Lanes (&b)[vectors], Lanes (&sums)[rows][vectors]) {
#pragma GCC unroll 24
  for (int r = 0; r < rows; ++r) {
    const Lanes factor = splat(of_a(r));
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[r][v] = add_product(factor, b[v], sums[r][v]);
  }
}

// The same, for contiguous numbers.
template <int rows, int vectors>
inline void add_step(const float* a, const float* b, Lanes (&sums)[rows][vectors]) {
  Lanes columns[vectors];
#pragma GCC unroll 2
  for (int v = 0; v < vectors; ++v) columns[v] = load(b + v * kLanes);
  add_step([a](int r) { return a[r]; }, columns, sums);
}

// Computes sums [rows, vectors] = a [rows, depth] b [depth, columns]. `b_row` is the distance between rows of b, `last` the
// part of the last vector that exists. The rows of a are contiguous.
template <int rows, int vectors>
inline void multiply_rows(const float* a, const float* b, int64_t b_row, int64_t depth, const First& last,
                          Lanes (&sums)[rows][vectors]) {
  constexpr int kOfPointer = 3;  // rows for each pointer, because an address can have an offset of one or two steps
  constexpr int kPointers = (rows + kOfPointer - 1) / kOfPointer;
  const float* pointers[kPointers];
#pragma GCC unroll 24
  for (int p = 0; p < kPointers; ++p) pointers[p] = a + p * kOfPointer * depth;
  Lanes own[rows][vectors];  // registers; `sums` is in memory, where the compiler would store them in every step
  clear(own);
  for (int64_t k = 0; k < depth; ++k, b += b_row) {
    Lanes columns[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      if (v * kLanes % kLine == 0) __builtin_prefetch(b + kAhead * b_row + v * kLanes);
      columns[v] = v + 1 < vectors ? load(b + v * kLanes) : last.load(b + v * kLanes);
    }
    add_step([&](int r) { return pointers[r / kOfPointer][r % kOfPointer * depth]; }, columns, own);
#pragma GCC unroll 24
    for (int p = 0; p < kPointers; ++p) ++pointers[p];
  }
  store(own, &sums[0][0][0], vectors * kLanes);
}

// Multiplies a [rows, depth] by a panel of b, and calls `use(first row, sums [rows][vectors])` for every tile.
template <int vectors, typename Use>
inline void multiply_panel(const float* a, int64_t rows, const float* b, int64_t b_row, int64_t depth, const First& last, Use use) {
  int64_t r = 0;
  auto tiles = [&](auto height) {
    constexpr int kRows = decltype(height)::value;
    for (; r + kRows <= rows && !(vectors == 2 && kRows == kTileRows && rows - r == kTallestTile); r += kRows) {
      Lanes sums[kRows][vectors];
      multiply_rows(a + r * depth, b, b_row, depth, last, sums);
      use(r, sums);
    }
  };
  tiles(std::integral_constant<int, 2 * kTileRows / vectors>());
  tiles(std::integral_constant<int, kTileRows>());
  if constexpr (vectors == 2 && kTallestTile) tiles(std::integral_constant<int, kTallestTile>());
  tiles(std::integral_constant<int, kShortTile>());
  tiles(std::integral_constant<int, 1>());
}

// The same as multiply_panel, for a panel of `columns` columns, at most kPanel.
template <typename Use>
inline void multiply_columns(const float* a, int64_t rows, const float* b, int64_t b_row, int64_t depth, int64_t columns,
                             Use use) {
  if (columns > kLanes) {
    multiply_panel<2>(a, rows, b, b_row, depth, First(columns - kLanes), use);
  } else {
    multiply_panel<1>(a, rows, b, b_row, depth, First(columns), use);
  }
}

// Multiplies a [1, depth] by the columns of b from `begin` to `end`, and calls `use(first column, sums [1][vectors])` for
// every strip. Strips are wide, because b is read from main memory, and long runs of its rows are read faster.
template <typename Use>
inline void multiply_row(const float* a, const float* b, int64_t b_row, int64_t depth, int64_t begin, int64_t end, Use use) {
  auto strips = [&](auto width) {
    constexpr int kVectors = decltype(width)::value;
    for (; end - begin > (kVectors - 1) * kLanes; begin += kVectors * kLanes) {
      Lanes sums[1][kVectors];
      multiply_rows(a, b + begin, b_row, depth, First(end - begin - (kVectors - 1) * kLanes), sums);
      use(begin, sums);
    }
  };
  strips(std::integral_constant<int, 8>());
  strips(std::integral_constant<int, 4>());
  strips(std::integral_constant<int, 2>());
  strips(std::integral_constant<int, 1>());
}

}  // namespace native

#endif  // EMULATOR_NATIVE_PRODUCTS_H_
