/* Small matrix products of a few rows with a panel of weights, for any vector unit.
 *
 * Weights are rows of outputs, one for every input, and the bias last. They are split into panels of two vectors of
 * outputs (the last may have one), each contiguous; outputs are padded with zero weights to whole vectors.
 *
 * Written with the vector extensions of GCC and Clang. Sums have a fixed order, so the bits depend on the machine code
 * alone, and the result of a sample does not depend on the other samples of its batch. NaN propagates.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A vector has LANES floats. A tile is TILE rows of two vectors; with its operands it fills the registers. */
#if defined(__AVX512F__)
enum { LANES = 16, TILE = 12 };
#elif defined(__AVX__)
enum { LANES = 8, TILE = 6 };
#elif defined(__aarch64__)
enum { LANES = 4, TILE = 12 };
#else
enum { LANES = 4, TILE = 6 };
#endif

typedef float vec __attribute__((vector_size(4 * LANES), may_alias));
typedef int32_t mask __attribute__((vector_size(4 * LANES)));
#define INLINE static inline __attribute__((always_inline))

/* -- sums over the lanes of vectors ------------------------------------------------------------------------------- */

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (mask){__VA_ARGS__})
#endif
#define EACH4(f, s, j) f(s, j), f(s, j + 1), f(s, j + 2), f(s, j + 3)
#if defined(__AVX512F__)
#define EACH(f, s) EACH4(f, s, 0), EACH4(f, s, 4), EACH4(f, s, 8), EACH4(f, s, 12)
#elif defined(__AVX__)
#define EACH(f, s) EACH4(f, s, 0), EACH4(f, s, 4)
#else
#define EACH(f, s) EACH4(f, s, 0)
#endif
/* Indices of blocks of s lanes, alternately from a and b: the first of every two blocks, and the second. */
#define FIRST(s, j) (((j) & (s)) ? LANES + (j) - (s) : (j))
#define SECOND(s, j) (((j) & (s)) ? LANES + (j) : (j) + (s))
#define FOLD(v, n, s)                                                                                                  \
    for (int k = 0; k < (n); k++)                                                                                      \
        v[k] = SHUFFLE(v[2 * k], v[2 * k + 1], EACH(FIRST, s)) + SHUFFLE(v[2 * k], v[2 * k + 1], EACH(SECOND, s));

/* Lane k of the result is the sum of the lanes of v[k]. */
INLINE vec lane_sums(vec v[LANES]) {
    FOLD(v, LANES / 2, 1)
    FOLD(v, LANES / 4, 2)
#if defined(__AVX__)
    FOLD(v, LANES / 8, 4)
#endif
#if defined(__AVX512F__)
    FOLD(v, LANES / 16, 8)
#endif
    return v[0];
}

/* -- products ----------------------------------------------------------------------------------------------------- */

INLINE const vec *as_vec(const float *p) { return (const vec *)p; }

typedef struct {
    long in, out, vectors; /* vectors of outputs */
    long channels, pixels; /* input k has the index k % channels * pixels + k / channels in torch */
    float *w;              /* panels of in + 1 rows; those below have the same layout */
    float *anchor;         /* NULL without a proximal term */
    float *drift;          /* added to every gradient, with plain SGD -lr times that; or NULL */
    long is_first;         /* whether it trains in the first steps of a job, if these are others */
    float *mean;           /* the momentum of SGD, or Adam's running mean of the gradient; or NULL */
    float *square_mean;    /* Adam's running mean of the squared gradient; or NULL */
} Weights;

static long vector_count(const Weights *w) { return (w->in + 1) * w->vectors; }

/* n rounded up to whole vectors. */
static long round_up(long n) { return (n + LANES - 1) / LANES * LANES; }

/* out[b] = bias + x[b] * panel, for `rows` samples and a panel of `vecs` vectors of outputs. The inputs are `segments`
 * runs of `length` numbers, `segment_stride` apart: one run for a linear layer, the rows of a patch for a
 * convolution. */
INLINE void matmul_tile(int rows, int vecs, const float *x, long stride, long segments, long length,
                        long segment_stride, const float *panel, const float *bias, float *out, long out_stride,
                        int relu) {
    vec sum[TILE][2];
    const vec *row = as_vec(panel);
    for (int b = 0; b < rows; b++)
        for (int v = 0; v < vecs; v++) sum[b][v] = as_vec(bias)[v];
    for (long s = 0; s < segments; s++, x += segment_stride)
        for (long i = 0; i < length; i++, row += vecs) {
            vec w[2];
            for (int v = 0; v < vecs; v++) w[v] = row[v];
            for (int b = 0; b < rows; b++)
                for (int v = 0; v < vecs; v++) sum[b][v] += x[b * stride + i] * w[v];
        }
    for (int b = 0; b < rows; b++)
        for (int v = 0; v < vecs; v++) {
            vec s = sum[b][v];
            if (relu) s = (vec)((mask)s & ~(s < 0)); /* keeps NaN */
            *(vec *)(out + b * out_stride + v * LANES) = s;
        }
}

/* panel += lr_prox * (anchor - panel) + drift + the sum over `rows` samples of x[b] * delta[b], for `in` inputs. The
 * weights are added last: they come from the second-level cache, and adding small terms first is more accurate. */
INLINE void update_tile(int rows, int vecs, const float *x, long stride, long in, const float *delta, long delta_stride,
                        float *panel, const float *anchor, float lr_prox, const float *drift) {
    vec d[TILE][2];
    for (int b = 0; b < rows; b++)
        for (int v = 0; v < vecs; v++) d[b][v] = as_vec(delta + b * delta_stride)[v];
    for (long i = 0; i < in; i++) {
        vec sum[2];
        for (int v = 0; v < vecs; v++) sum[v] = x[i] * d[0][v];
        for (int b = 1; b < rows; b++)
            for (int v = 0; v < vecs; v++) sum[v] += x[b * stride + i] * d[b][v];
        for (int v = 0; v < vecs; v++) {
            vec *w = (vec *)panel + i * vecs + v;
            if (anchor) sum[v] += lr_prox * (as_vec(anchor)[i * vecs + v] - *w);
            if (drift) sum[v] += as_vec(drift)[i * vecs + v];
            *w += sum[v];
        }
    }
}

/* panel += the sum over height x width pixels of x[pixel] * delta[pixel]: the gradient of `rows` weights of a
 * convolution. */
INLINE void gradient_tile(int rows, int vecs, const float *x, long x_stride, long x_row, const float *delta,
                          long delta_stride, long delta_row, long height, long width, float *panel) {
    vec sum[TILE][2] = {0};
    for (long i = 0; i < height; i++)
        for (long j = 0; j < width; j++) {
            const float *from = x + i * x_row + j * x_stride;
            vec d[2];
            for (int v = 0; v < vecs; v++) d[v] = as_vec(delta + i * delta_row + j * delta_stride)[v];
            for (int k = 0; k < rows; k++)
                for (int v = 0; v < vecs; v++) sum[k][v] += from[k] * d[v];
        }
    for (int k = 0; k < rows; k++)
        for (int v = 0; v < vecs; v++) ((vec *)panel)[k * vecs + v] += sum[k][v];
}

/* `call` with ROWS as a compile-time constant, for every number of rows a tile may have. */
#define CASE(n, call)                                                                                                  \
    case n: {                                                                                                          \
        enum { ROWS = n < TILE ? n : TILE };                                                                           \
        call;                                                                                                          \
        break;                                                                                                         \
    }
#define WITH_ROWS(rows, call)                                                                                          \
    switch (rows) {                                                                                                    \
        CASE(1, call)                                                                                                  \
        CASE(2, call)                                                                                                  \
        CASE(3, call)                                                                                                  \
        CASE(4, call)                                                                                                  \
        CASE(5, call)                                                                                                  \
        CASE(6, call)                                                                                                  \
        CASE(7, call)                                                                                                  \
        CASE(8, call)                                                                                                  \
        CASE(9, call)                                                                                                  \
        CASE(10, call)                                                                                                 \
        CASE(11, call)                                                                                                 \
        CASE(12, call)                                                                                                 \
    }

/* The number of tiles of nearly equal size that rows are split into. */
static long tile_count(long rows) { return (rows + TILE - 1) / TILE; }

/* Of the inputs of a product: `segments` runs of `length` numbers, `stride` apart, of which only those from `first` to
 * before `end` are not 0. */
typedef struct {
    long segments, length, stride, first, end;
} Inputs;

/* The product of `rows` samples, `stride` apart, with all panels. */
static void matmul(const float *x, long stride, long rows, Inputs in, const float *w, long vectors, float *out,
                   long out_stride, int relu) {
    long tiles = tile_count(rows), inputs = in.segments * in.length, used = in.end - in.first;
    for (long p = 0; p < vectors; p += 2) {
        long vecs = p + 1 < vectors ? 2 : 1;
        const float *panel = w + p * LANES * (inputs + 1), *bias = panel + inputs * vecs * LANES;
        panel += in.first * in.length * vecs * LANES;
        for (long t = 0; t < tiles; t++) {
            long first = t * rows / tiles, count = (t + 1) * rows / tiles - first;
            const float *from = x + first * stride + in.first * in.stride;
            float *to = out + first * out_stride + p * LANES;
            if (vecs == 2)
                WITH_ROWS(count, matmul_tile(ROWS, 2, from, stride, used, in.length, in.stride, panel, bias, to,
                                             out_stride, relu))
            else
                WITH_ROWS(count, matmul_tile(ROWS, 1, from, stride, used, in.length, in.stride, panel, bias, to,
                                             out_stride, relu))
        }
    }
}
