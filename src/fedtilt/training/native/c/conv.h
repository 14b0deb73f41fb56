/* Blocks of a convolution, ReLU and 2 x 2 max-pooling, a sample at a time, channels last.
 *
 * Images are padded with zeros, so that a patch is `kernel` runs of kernel * channels numbers and needs no copy: a
 * convolution is the product of matmul.h, with the pixels of an image row as samples. The gradient by the input is a
 * convolution too, of the padded deltas with the flipped kernel.
 */

typedef struct {
    Weights weights; /* inputs: the pixels of a patch, channels fastest */
    long height, width, channels, kernel, padding;
    long out_height, out_width; /* of the convolution, before the pooling */
    long row_size;   /* floats of a row of a padded image */
    long image_size; /* floats of a padded image */
    float *input;    /* (batch, padded height, padded width, channels) */
    int32_t *argmax; /* (batch, half out_height, half out_width, out): which of four pixels was largest, -1: none > 0 */
    float *delta;    /* (height + kernel - 1, width + kernel - 1, out rounded up): of one sample, padded */
    float *gradient; /* in the layout of the weights */
    float *flipped;  /* the weights for the gradient by the input; NULL in the first block, which needs none */
} ConvBlock;

static long kernel_area(const ConvBlock *conv) { return conv->kernel * conv->kernel; }

/* Floats of a row of `delta`, and the rows and pixels of zeros before its first one. */
static long delta_row(const ConvBlock *conv) { return (conv->width + conv->kernel - 1) * round_up(conv->weights.out); }
static long delta_padding(const ConvBlock *conv) { return conv->kernel - 1 - conv->padding; }

/* Copy torch's (channels, height, width) into a padded image. */
static void load_image(const ConvBlock *conv, const float *x, float *image) {
    for (long i = 0; i < conv->height; i++)
        for (long j = 0; j < conv->width; j++)
            for (long c = 0; c < conv->channels; c++)
                image[(i + conv->padding) * conv->row_size + (j + conv->padding) * conv->channels + c] =
                    x[(c * conv->height + i) * conv->width + j];
}

/* ReLU and the maximum of every four pixels, the first of equals as in torch, into `to` with rows `to_row` apart. */
static void pool(const ConvBlock *conv, const float *maps, float *to, long to_row, int32_t *argmax) {
    long out = conv->weights.out, stride = round_up(out), row = conv->out_width * stride;
    for (long i = 0; i < conv->out_height / 2; i++)
        for (long j = 0; j < conv->out_width / 2; j++) {
            const float *restrict a = maps + 2 * i * row + 2 * j * stride, *restrict b = a + stride;
            const float *restrict c = a + row, *restrict d = c + stride;
            float *restrict maximum = to + i * to_row + j * out;
            int32_t *restrict winner = argmax + (i * (conv->out_width / 2) + j) * out;
            for (long o = 0; o < out; o++) {
                float top = a[o];
                int32_t index = 0;
                index = b[o] <= top ? index : 1, top = b[o] <= top ? top : b[o];
                index = c[o] <= top ? index : 2, top = c[o] <= top ? top : c[o];
                index = d[o] <= top ? index : 3, top = d[o] <= top ? top : d[o];
                maximum[o] = top <= 0 ? 0 : top;
                winner[o] = top <= 0 ? -1 : index;
            }
        }
}

/* The backward pass of `pool`: deltas of the pooled image go to the pixels that were largest. */
static void unpool(const ConvBlock *conv, const float *pooled, long stride, const int32_t *argmax) {
    long out = conv->weights.out, out_stride = round_up(out), row = delta_row(conv);
    for (long i = 0; i < conv->out_height / 2; i++)
        for (long j = 0; j < conv->out_width / 2; j++) {
            long from = i * (conv->out_width / 2) + j;
            for (int q = 0; q < 4; q++) {
                float *restrict to = conv->delta + (2 * i + q / 2 + delta_padding(conv)) * row +
                                     (2 * j + q % 2 + delta_padding(conv)) * out_stride;
                for (long o = 0; o < out; o++) to[o] = argmax[from * out + o] == q ? pooled[from * stride + o] : 0;
            }
        }
}

static void convolve(const ConvBlock *conv, const float *image, float *maps) {
    long stride = round_up(conv->weights.out);
    Inputs patch = {conv->kernel, conv->kernel * conv->channels, conv->row_size, 0, conv->kernel};
    for (long i = 0; i < conv->out_height; i++)
        matmul(image + i * conv->row_size, conv->channels, conv->out_width, patch, conv->weights.w,
               conv->weights.vectors, maps + i * conv->out_width * stride, stride, 0);
}

/* The kernel for the gradient by the input: pixels in reverse order, outputs and channels exchanged. */
static void flip_kernel(const ConvBlock *conv) {
    long out = round_up(conv->weights.out), rows = kernel_area(conv) * out + 1;
    long vectors = round_up(conv->channels) / LANES;
    for (long t = 0; t < kernel_area(conv); t++)
        for (long c = 0; c < conv->channels; c++) {
            long q = c / (2 * LANES) * 2, q_vecs = q + 1 < vectors ? 2 : 1;
            float *to = conv->flipped + q * LANES * rows + t * out * q_vecs * LANES + c - q * LANES;
            for (long p = 0; p < conv->weights.vectors; p += 2) {
                long vecs = p + 1 < conv->weights.vectors ? 2 : 1;
                const float *from = conv->weights.w + p * LANES * (conv->weights.in + 1) +
                                    ((kernel_area(conv) - 1 - t) * conv->channels + c) * vecs * LANES;
                for (long o = 0; o < vecs * LANES; o++) to[(p * LANES + o) * q_vecs * LANES] = from[o];
            }
        }
}

/* Add the gradient by the weights of one sample. */
static void add_weight_gradient(const ConvBlock *conv, const float *image) {
    long out_stride = round_up(conv->weights.out), row = delta_row(conv);
    long run = conv->kernel * conv->channels;
    const float *delta = conv->delta + delta_padding(conv) * (row + out_stride);
    long tiles = tile_count(run);
    for (long p = 0; p < conv->weights.vectors; p += 2) {
        long vecs = p + 1 < conv->weights.vectors ? 2 : 1;
        float *panel = conv->gradient + p * LANES * (conv->weights.in + 1);
        const float *d = delta + p * LANES;
        for (long s = 0; s < conv->kernel; s++)
            for (long t = 0; t < tiles; t++) {
                long first = t * run / tiles, rows = (t + 1) * run / tiles - first;
                const float *x = image + s * conv->row_size + first;
                float *to = panel + (s * run + first) * vecs * LANES;
                if (vecs == 2)
                    WITH_ROWS(rows, gradient_tile(ROWS, 2, x, conv->channels, conv->row_size, d, out_stride, row,
                                                  conv->out_height, conv->out_width, to))
                else
                    WITH_ROWS(rows, gradient_tile(ROWS, 1, x, conv->channels, conv->row_size, d, out_stride, row,
                                                  conv->out_height, conv->out_width, to))
            }
        float *bias = panel + conv->weights.in * vecs * LANES;
        for (long i = 0; i < conv->out_height; i++)
            for (long j = 0; j < conv->out_width; j++)
                for (long v = 0; v < vecs; v++) ((vec *)bias)[v] += as_vec(d + i * row + j * out_stride)[v];
    }
}

/* The deltas of the block's input, (height, width, channels rounded up). */
static void convolve_backward(const ConvBlock *conv, float *input_delta) {
    long out_stride = round_up(conv->weights.out), row = delta_row(conv);
    long stride = round_up(conv->channels);
    for (long i = 0; i < conv->height; i++) { /* its patch has the rows of delta from i on, and zeros around these */
        long first = delta_padding(conv) - i, end = first + conv->out_height;
        Inputs patch = {conv->kernel, conv->kernel * out_stride, row, first > 0 ? first : 0,
                        end < conv->kernel ? end : conv->kernel};
        matmul(conv->delta + i * row, out_stride, conv->width, patch, conv->flipped, stride / LANES,
               input_delta + i * conv->width * stride, stride, 0);
    }
}

/* A step of plain SGD: w += lr_prox * (anchor - w) + drift + gradient. */
static void apply_gradient(const ConvBlock *conv, float lr_prox) {
    vec *w = (vec *)conv->weights.w;
    for (long i = 0; i < vector_count(&conv->weights); i++) {
        vec change = as_vec(conv->gradient)[i];
        if (conv->weights.anchor) change += lr_prox * (as_vec(conv->weights.anchor)[i] - w[i]);
        if (conv->weights.drift) change += as_vec(conv->weights.drift)[i];
        w[i] += change;
    }
}
