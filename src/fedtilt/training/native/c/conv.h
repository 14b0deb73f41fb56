/* Blocks of a convolution, ReLU and 2 x 2 max-pooling, a sample at a time, channels last.
 *
 * An image has a frame of zeros, so that a window is `size` runs of size * channels numbers and needs no copy: a
 * convolution is the product of products.h, with a row of the image's spots as samples. The slope by the input is a
 * convolution too, of the framed deltas with the turned kernel.
 */

typedef struct {
    Weights weights; /* inputs: a window's spots, channels fastest */
    long height, width, channels, size, frame;
    long image_row;  /* floats from one row of a framed image to the next */
    long image_size; /* floats of a framed image */
    float *image;    /* (batch, framed height, framed width, channels): the inputs */
    int32_t *which;  /* (batch, height / 2, width / 2, out): which of the four spots was largest, -1 if none was > 0 */
    float *delta;    /* (framed height, framed width, out padded): of one sample */
    float *gradient; /* as the weights */
    float *turned;   /* the weights for the slope by the input; NULL in the first block, which needs none */
} Block;

static long taps(const Block *k) { return k->size * k->size; }

/* From torch's (channels, height, width) into the frame. */
static void frame_image(const Block *k, const float *x, float *image) {
    for (long i = 0; i < k->height; i++)
        for (long j = 0; j < k->width; j++)
            for (long c = 0; c < k->channels; c++)
                image[(i + k->frame) * k->image_row + (j + k->frame) * k->channels + c] =
                    x[(c * k->height + i) * k->width + j];
}

/* ReLU and the largest of every four spots, the first of equals as in torch, into `to` with rows `to_row` apart. */
static void pool(const Block *k, const float *maps, float *to, long to_row, int32_t *which) {
    long out = k->weights.out, stride = padded(out), row = k->width * stride;
    for (long i = 0; i < k->height / 2; i++)
        for (long j = 0; j < k->width / 2; j++) {
            const float *restrict a = maps + 2 * i * row + 2 * j * stride, *restrict b = a + stride;
            const float *restrict c = a + row, *restrict d = c + stride;
            float *restrict best = to + i * to_row + j * out;
            int32_t *restrict spot = which + (i * (k->width / 2) + j) * out;
            for (long o = 0; o < out; o++) {
                float top = a[o];
                int32_t found = 0;
                found = b[o] <= top ? found : 1, top = b[o] <= top ? top : b[o];
                found = c[o] <= top ? found : 2, top = c[o] <= top ? top : c[o];
                found = d[o] <= top ? found : 3, top = d[o] <= top ? top : d[o];
                best[o] = top <= 0 ? 0 : top;
                spot[o] = top <= 0 ? -1 : found;
            }
        }
}

/* The way back: deltas of the pooled image to the spots they came from. */
static void unpool(const Block *k, const float *pooled, long stride, const int32_t *which) {
    long out = k->weights.out, wide = padded(out), row = (k->width + 2 * k->frame) * wide;
    for (long i = 0; i < k->height / 2; i++)
        for (long j = 0; j < k->width / 2; j++) {
            long from = i * (k->width / 2) + j;
            for (int q = 0; q < 4; q++) {
                float *restrict to = k->delta + (2 * i + q / 2 + k->frame) * row + (2 * j + q % 2 + k->frame) * wide;
                for (long o = 0; o < out; o++) to[o] = which[from * out + o] == q ? pooled[from * stride + o] : 0;
            }
        }
}

static void convolve(const Block *k, const float *image, float *maps) {
    long stride = padded(k->weights.out);
    for (long i = 0; i < k->height; i++)
        forward(image + i * k->image_row, k->channels, k->width, k->size, k->size * k->channels, k->image_row,
                k->weights.w, k->weights.vectors, maps + i * k->width * stride, stride, 0);
}

/* Kernels for the slope by the input: spots in reverse order, outputs and channels exchanged. */
static void turn(const Block *k) {
    long out = padded(k->weights.out), rows = taps(k) * out + 1, vectors = padded(k->channels) / LANES;
    for (long t = 0; t < taps(k); t++)
        for (long c = 0; c < k->channels; c++) {
            long q = c / (2 * LANES) * 2, q_wide = q + 1 < vectors ? 2 : 1;
            float *to = k->turned + q * LANES * rows + t * out * q_wide * LANES + c - q * LANES;
            for (long p = 0; p < k->weights.vectors; p += 2) {
                long wide = p + 1 < k->weights.vectors ? 2 : 1;
                const float *from = k->weights.w + p * LANES * (k->weights.in + 1) +
                                    ((taps(k) - 1 - t) * k->channels + c) * wide * LANES;
                for (long o = 0; o < wide * LANES; o++) to[(p * LANES + o) * q_wide * LANES] = from[o];
            }
        }
}

/* The slope by the weights, added up over samples. */
static void add_gradient(const Block *k, const float *image) {
    long wide_out = padded(k->weights.out), row = (k->width + 2 * k->frame) * wide_out, run = k->size * k->channels;
    const float *delta = k->delta + k->frame * (row + wide_out);
    long tiles = tiles_of(run);
    for (long p = 0; p < k->weights.vectors; p += 2) {
        long wide = p + 1 < k->weights.vectors ? 2 : 1;
        float *panel = k->gradient + p * LANES * (k->weights.in + 1);
        const float *d = delta + p * LANES;
        for (long s = 0; s < k->size; s++)
            for (long t = 0; t < tiles; t++) {
                long first = t * run / tiles, rows = (t + 1) * run / tiles - first;
                const float *x = image + s * k->image_row + first;
                float *to = panel + (s * run + first) * wide * LANES;
                if (wide == 2)
                    WITH_ROWS(rows, gradient_tile(ROWS, 2, x, k->channels, k->image_row, d, wide_out, row, k->height,
                                                  k->width, to))
                else
                    WITH_ROWS(rows, gradient_tile(ROWS, 1, x, k->channels, k->image_row, d, wide_out, row, k->height,
                                                  k->width, to))
            }
        float *bias = panel + k->weights.in * wide * LANES;
        for (long i = 0; i < k->height; i++)
            for (long j = 0; j < k->width; j++)
                for (long v = 0; v < wide; v++) ((vec *)bias)[v] += at(d + i * row + j * wide_out)[v];
    }
}

/* The deltas of the pooled image below, (height, width, channels padded). */
static void convolve_back(const Block *k, float *below) {
    long wide = padded(k->weights.out), row = (k->width + 2 * k->frame) * wide, stride = padded(k->channels);
    for (long i = 0; i < k->height; i++)
        forward(k->delta + i * row, wide, k->width, k->size, k->size * wide, row, k->turned, stride / LANES,
                below + i * k->width * stride, stride, 0);
}

/* w += drawn * (anchor - w) + gradient, and the gradient starts again. */
static void apply_gradient(const Block *k, float drawn) {
    long count = (k->weights.in + 1) * k->weights.vectors;
    vec *w = (vec *)k->weights.w, *gradient = (vec *)k->gradient;
    for (long i = 0; i < count; i++) {
        if (k->weights.anchor) gradient[i] += drawn * (at(k->weights.anchor)[i] - w[i]);
        w[i] += gradient[i];
        gradient[i] = (vec){0};
    }
}
