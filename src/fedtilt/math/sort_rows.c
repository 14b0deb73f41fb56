/* Sort every column of a matrix; see sort_rows.py. */
#include <stdint.h>
#include <string.h>

/* Columns that are sorted at a time: a vector. */
#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t mask __attribute__((vector_size(4 * LANES)));

#define CHOOSE(condition, a, b) (vec)(((condition) & (mask)(a)) | (~(condition) & (mask)(b)))

typedef struct {
    long rows, cut, pair_count;
    const int32_t *pairs; /* the rows that are put in order one after the other */
    vec *values;          /* space for all rows */
} Sort;

/* Sort `width` columns, at most LANES, and write the rows from `cut` to before rows - cut. */
static inline __attribute__((always_inline)) void sort_columns(const Sort *sort, long width, const float *in,
                                                               long in_stride, float *out, long out_stride) {
    for (long r = 0; r < sort->rows; r++) memcpy(sort->values + r, in + r * in_stride, 4 * width);
    for (long p = 0; p < sort->pair_count; p++) {
        vec *low = sort->values + sort->pairs[2 * p], *high = sort->values + sort->pairs[2 * p + 1];
        vec a = *low, b = *high;
        mask swap = b < a;
        *low = CHOOSE(swap, b, a), *high = CHOOSE(swap, a, b);
    }
    for (long r = sort->cut; r < sort->rows - sort->cut; r++)
        memcpy(out + (r - sort->cut) * out_stride, sort->values + r, 4 * width);
}

void fedtilt_sort_rows(long rows, long columns, const float *in, long in_stride, float *out, long out_stride, long cut,
                       const int32_t *pairs, long pair_count, float *buffer) {
    Sort sort = {rows, cut, pair_count, pairs, (vec *)buffer};
    long j = 0;
    for (; j + LANES <= columns; j += LANES) sort_columns(&sort, LANES, in + j, in_stride, out + j, out_stride);
    if (j < columns) sort_columns(&sort, columns - j, in + j, in_stride, out + j, out_stride);
}
