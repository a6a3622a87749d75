// Matrix products in tiles whose sums stay in registers, for processors with vectors of 16 numbers (AVX-512).
//
// Every number of a product is one sum, whose terms are added in order. So its bits depend neither on the number of threads,
// nor on the tiles, nor on other rows.

#ifndef EMULATOR_NATIVE_PRODUCTS_H_
#define EMULATOR_NATIVE_PRODUCTS_H_

#ifdef __AVX512F__

#include <immintrin.h>

#include <type_traits>

#include "emulator/native/windows.h"

namespace native {

constexpr int64_t kVector = 16;     // A vector has this many numbers.
constexpr int64_t kStrip = 128;     // A strip has eight vectors of columns, in a product with one row.
constexpr int64_t kPanel = 32;      // A panel of b has two vectors of columns.
constexpr int64_t kAhead = 32;      // Prefetch rows of b this far ahead; they are too far apart for the hardware.
// Rows of a tile of two vectors. With one vector, a tile has twice as many rows. The sums take 24 of the 32 registers.
constexpr int kTallTile = 12;
constexpr int kTallestTile = 13;    // 13 remaining rows (7 x 7 pixels) are one tile, because one row alone takes a third.
constexpr int kShortTile = 4;       // Other remaining rows are in tiles of four rows.

// Returns the mask of a vector of which only `columns` numbers exist.
inline __mmask16 mask_of(int64_t columns) {
  return static_cast<__mmask16>(columns >= kVector ? 0xFFFF : (1u << columns) - 1);
}

// Reads one number of each cache line, in order, so that the hardware prefetches the other lines. Windows and tiles read out
// of order, and would wait for every line.
inline void touch(const float* from, int64_t count) {
  for (int64_t k = 0; k < count; k += kVector) asm volatile("" ::"x"(from[k]));
}

// Adds one step of a product: sums [rows, vectors * 16] += a [rows] b [vectors * 16].
template <int rows, int vectors>
inline void add_step(const float* a, const float* b, __m512 (&sums)[rows][vectors]) {
  __m512 columns[vectors];
#pragma GCC unroll 2
  for (int v = 0; v < vectors; ++v) columns[v] = _mm512_loadu_ps(b + v * kVector);
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    const __m512 factor = _mm512_set1_ps(a[r]);
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[r][v] = _mm512_fmadd_ps(factor, columns[v], sums[r][v]);
  }
}

// Computes sums [rows, vectors * 16] = a [rows, depth] b [depth, columns]. `b_row` is the distance between rows of b, `last`
// the mask of the last vector. The rows of a are contiguous.
template <int rows, int vectors>
inline void multiply_tile(const float* a, const float* b, int64_t b_row, int64_t depth, __mmask16 last,
                          __m512 (&sums)[rows][vectors]) {
  constexpr int kOfPointer = 3;  // rows for each pointer, because an address can have an offset of one or two steps
  constexpr int kPointers = (rows + kOfPointer - 1) / kOfPointer;
  const float* pointers[kPointers];
#pragma GCC unroll 24
  for (int p = 0; p < kPointers; ++p) pointers[p] = a + p * kOfPointer * depth;
#pragma GCC unroll 24
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < depth; ++k, b += b_row) {
    __m512 columns[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      _mm_prefetch(b + kAhead * b_row + v * kVector, _MM_HINT_T0);
      columns[v] = v + 1 < vectors ? _mm512_loadu_ps(b + v * kVector) : _mm512_maskz_loadu_ps(last, b + v * kVector);
    }
#pragma GCC unroll 24
    for (int r = 0; r < rows; ++r) {
      const __m512 factor = _mm512_set1_ps(pointers[r / kOfPointer][r % kOfPointer * depth]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[r][v] = _mm512_fmadd_ps(factor, columns[v], sums[r][v]);
    }
#pragma GCC unroll 24
    for (int p = 0; p < kPointers; ++p) ++pointers[p];
  }
}

// Multiplies a [rows, depth] by a panel of b, and calls `use(first row, sums [rows][vectors])` for every tile.
template <int vectors, typename Use>
inline void multiply_panel(const float* a, int64_t rows, const float* b, int64_t b_row, int64_t depth, __mmask16 last, Use use) {
  int64_t r = 0;
  auto tiles = [&](auto height) {
    constexpr int kRows = decltype(height)::value;
    for (; r + kRows <= rows && !(vectors == 2 && kRows == kTallTile && rows - r == kTallestTile); r += kRows) {
      __m512 sums[kRows][vectors];
      multiply_tile<kRows, vectors>(a + r * depth, b, b_row, depth, last, sums);
      use(r, sums);
    }
  };
  tiles(std::integral_constant<int, 2 * kTallTile / vectors>());
  tiles(std::integral_constant<int, kTallTile>());
  if constexpr (vectors == 2) tiles(std::integral_constant<int, kTallestTile>());
  tiles(std::integral_constant<int, kShortTile>());
  tiles(std::integral_constant<int, 1>());
}

// The same as multiply_panel, for a panel of `columns` columns, at most 32.
template <typename Use>
inline void multiply_columns(const float* a, int64_t rows, const float* b, int64_t b_row, int64_t depth, int64_t columns,
                             Use use) {
  if (columns > kVector) {
    multiply_panel<2>(a, rows, b, b_row, depth, mask_of(columns - kVector), use);
  } else {
    multiply_panel<1>(a, rows, b, b_row, depth, mask_of(columns), use);
  }
}

// Multiplies a [1, depth] by the columns of b from `begin` to `end`, and calls `use(first column, sums [1][vectors])` for
// every strip. Strips are wide, because b is read from main memory, and long runs of its rows are read faster.
template <typename Use>
inline void multiply_row(const float* a, const float* b, int64_t b_row, int64_t depth, int64_t begin, int64_t end, Use use) {
  auto strips = [&](auto width) {
    constexpr int kVectors = decltype(width)::value;
    for (; end - begin > (kVectors - 1) * kVector; begin += kVectors * kVector) {
      __m512 sums[1][kVectors];
      multiply_tile<1, kVectors>(a, b + begin, b_row, depth, mask_of(end - begin - (kVectors - 1) * kVector), sums);
      use(begin, sums);
    }
  };
  strips(std::integral_constant<int, 8>());
  strips(std::integral_constant<int, 4>());
  strips(std::integral_constant<int, 2>());
  strips(std::integral_constant<int, 1>());
}

}  // namespace native

#endif  // __AVX512F__

#endif  // EMULATOR_NATIVE_PRODUCTS_H_
