/* Linear layers. */

typedef struct {
    Weights weights;
    float *h;     /* (batch, in + 1): the inputs, followed by a 1 for the bias */
    float *delta; /* (batch, out): the gradient by the outputs; with plain SGD, -lr times that */
    long h_stride, delta_stride;
} LinearLayer;

/* Add the sum over the samples of x * delta to `to`, for `count` rows of panel `p` from row `first`; with an anchor
 * or a drift, `to` is the weights, and the proximal term or the drift is added too. */
static void add_products(const LinearLayer *layer, long batch, long p, long first, long count, float *to,
                         const float *anchor, float lr_prox, const float *drift) {
    long tiles = tile_count(batch), stride = layer->h_stride, d_stride = layer->delta_stride;
    for (long t = 0; t < tiles; t++) {
        long sample = t * batch / tiles, rows = (t + 1) * batch / tiles - sample;
        const float *x = layer->h + sample * stride + first, *d = layer->delta + sample * d_stride + p * LANES;
        const float *pull = t == 0 ? anchor : NULL, *push = t == 0 ? drift : NULL; /* once a step */
        if (p + 1 < layer->weights.vectors)
            WITH_ROWS(rows, update_tile(ROWS, 2, x, stride, count, d, d_stride, to, pull, lr_prox, push))
        else
            WITH_ROWS(rows, update_tile(ROWS, 1, x, stride, count, d, d_stride, to, pull, lr_prox, push))
    }
}

/* A step of plain SGD: the gradient is never stored, it is added to the weights as it is computed. */
static void linear_update(const LinearLayer *layer, long batch, float lr_prox) {
    const Weights *weights = &layer->weights;
    for (long p = 0; p < weights->vectors; p += 2) {
        long panel = p * LANES * (weights->in + 1);
        const float *anchor = weights->anchor ? weights->anchor + panel : NULL;
        const float *drift = weights->drift ? weights->drift + panel : NULL;
        add_products(layer, batch, p, 0, weights->in + 1, weights->w + panel, anchor, lr_prox, drift);
    }
}

/* Pass the gradient to `use`, a strip that stays in the first-level cache at a time. */
static double linear_gradient(const LinearLayer *layer, long batch, UseGradient *use, const Step *step) {
    enum { STRIP = 64 }; /* rows of a panel */
    const Weights *weights = &layer->weights;
    double total = 0;
    for (long p = 0; p < weights->vectors; p += 2) {
        long vecs = p + 1 < weights->vectors ? 2 : 1;
        for (long i = 0; i <= weights->in; i += STRIP) {
            long count = weights->in + 1 - i < STRIP ? weights->in + 1 - i : STRIP;
            vec gradient[2 * STRIP] = {0};
            add_products(layer, batch, p, i, count, (float *)gradient, NULL, 0, NULL);
            total += use(weights, p * (weights->in + 1) + i * vecs, count * vecs, gradient, step);
        }
    }
    return total;
}

/* sum[k] += delta * rows[k] for two samples; sums of rows past the last are computed, but not used. */
INLINE void backward_tile(int vecs, const vec *d0, const vec *d1, const vec *rows, vec sum[LANES]) {
    for (int v = 0; v < vecs; v++)
        for (int k = 0; k < LANES / 2; k++) {
            sum[k] += d0[v] * rows[k * vecs + v];
            sum[LANES / 2 + k] += d1[v] * rows[k * vecs + v];
        }
}

/* The deltas of the previous layer: delta[b][i] = sum over o of delta[b][o] * w[i][o], or 0 where ReLU gave 0. Two
 * samples and LANES / 2 inputs at a time, whose sums over lanes fill one vector. */
static void linear_backward(const LinearLayer *layer, long batch, float *input_delta, long input_stride) {
    enum { INPUTS = LANES / 2 };
    for (long i = 0; i < layer->weights.in; i += INPUTS) {
        long inputs = layer->weights.in - i < INPUTS ? layer->weights.in - i : INPUTS;
        for (long b = 0; b < batch; b += 2) {
            const float *d0 = layer->delta + b * layer->delta_stride;
            const float *d1 = b + 1 < batch ? d0 + layer->delta_stride : d0;
            vec sum[LANES] = {0};
            for (long p = 0; p < layer->weights.vectors; p += 2) {
                const float *panel = layer->weights.w + p * LANES * (layer->weights.in + 1);
                if (p + 1 < layer->weights.vectors)
                    backward_tile(2, as_vec(d0) + p, as_vec(d1) + p, as_vec(panel) + 2 * i, sum);
                else
                    backward_tile(1, as_vec(d0) + p, as_vec(d1) + p, as_vec(panel) + i, sum);
            }
            vec s = lane_sums(sum);
            for (long r = 0; r < 2 && b + r < batch; r++) {
                float *to = input_delta + (b + r) * input_stride + i;
                if (inputs == INPUTS)
                    memcpy(to, (float *)&s + r * INPUTS, 4 * INPUTS);
                else
                    memcpy(to, (float *)&s + r * INPUTS, 4 * inputs);
            }
        }
    }
    for (long b = 0; b < batch; b++) {
        const float *h = layer->h + b * layer->h_stride;
        float *to = input_delta + b * input_stride;
        for (long i = 0; i < layer->weights.in; i++) to[i] = h[i] <= 0 ? 0 : to[i];
    }
}
