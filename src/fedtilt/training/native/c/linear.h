/* Linear layers. */

typedef struct {
    Weights weights;
    float *h;     /* (batch, in + 1): the inputs, followed by a 1 for the bias */
    float *delta; /* (batch, out): the gradient by the outputs; with plain SGD, -lr times that */
    long h_stride, delta_stride;
} LinearLayer;

/* Add x * delta, summed over the samples, to the gradient, or to the weights themselves, with the proximal term. */
static void linear_update(const LinearLayer *layer, long batch, float lr_prox) {
    const Weights *weights = &layer->weights;
    float *to = weights->gradient ? weights->gradient : weights->w;
    const float *from_anchor = weights->gradient ? NULL : weights->anchor;
    long tiles = tile_count(batch), stride = layer->h_stride, d_stride = layer->delta_stride;
    for (long p = 0; p < weights->vectors; p += 2) {
        long panel = p * LANES * (weights->in + 1);
        for (long t = 0; t < tiles; t++) {
            long first = t * batch / tiles, rows = (t + 1) * batch / tiles - first;
            const float *x = layer->h + first * stride, *d = layer->delta + first * d_stride + p * LANES;
            const float *anchor = from_anchor && t == 0 ? from_anchor + panel : NULL; /* once a step */
            float *w = to + panel;
            if (p + 1 < weights->vectors)
                WITH_ROWS(rows, update_tile(ROWS, 2, x, stride, weights->in, d, d_stride, w, anchor, lr_prox))
            else
                WITH_ROWS(rows, update_tile(ROWS, 1, x, stride, weights->in, d, d_stride, w, anchor, lr_prox))
        }
    }
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
