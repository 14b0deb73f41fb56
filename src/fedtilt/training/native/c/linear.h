/* Linear layers. Forward is the product of products.h; the slope by the weights is never stored, but added to them. */

typedef struct {
    Weights weights;
    float *h;     /* (batch, in + 1): the inputs, and a 1 behind them for the bias */
    float *delta; /* (batch, out): -lr times the slope by the outputs */
    long h_stride, delta_stride;
} Layer;

static void update(const Layer *l, long batch, float drawn) {
    const Weights *own = &l->weights;
    long tiles = tiles_of(batch), stride = l->h_stride, d_stride = l->delta_stride;
    for (long p = 0; p < own->vectors; p += 2) {
        long panel = p * LANES * (own->in + 1);
        for (long t = 0; t < tiles; t++) {
            long first = t * batch / tiles, rows = (t + 1) * batch / tiles - first;
            const float *x = l->h + first * stride, *d = l->delta + first * d_stride + p * LANES;
            const float *anchor = own->anchor && t == 0 ? own->anchor + panel : NULL; /* it pulls once a step */
            float *w = own->w + panel;
            if (p + 1 < own->vectors)
                WITH_ROWS(rows, update_tile(ROWS, 2, x, stride, own->in, d, d_stride, w, anchor, drawn))
            else
                WITH_ROWS(rows, update_tile(ROWS, 1, x, stride, own->in, d, d_stride, w, anchor, drawn))
        }
    }
}

/* sum[k] += delta * rows[k] for two samples; past the last row stands something whose sum is not used. */
INLINE void backward_tile(int wide, const vec *d0, const vec *d1, const vec *rows, vec sum[LANES]) {
    for (int v = 0; v < wide; v++)
        for (int k = 0; k < LANES / 2; k++) {
            sum[k] += d0[v] * rows[k * wide + v];
            sum[LANES / 2 + k] += d1[v] * rows[k * wide + v];
        }
}

/* The deltas of the layer below: delta[b][i] = sum over o of delta[b][o] * w[i][o], where the input was not cut to 0.
 * Two samples and LANES / 2 inputs at a time, whose sums over lanes fill one vector. */
static void backward(const Layer *l, long batch, float *below, long below_stride) {
    enum { INPUTS = LANES / 2 };
    for (long i = 0; i < l->weights.in; i += INPUTS) {
        long inputs = l->weights.in - i < INPUTS ? l->weights.in - i : INPUTS;
        for (long b = 0; b < batch; b += 2) {
            const float *d0 = l->delta + b * l->delta_stride, *d1 = b + 1 < batch ? d0 + l->delta_stride : d0;
            vec sum[LANES] = {0};
            for (long p = 0; p < l->weights.vectors; p += 2) {
                const float *panel = l->weights.w + p * LANES * (l->weights.in + 1);
                if (p + 1 < l->weights.vectors)
                    backward_tile(2, at(d0) + p, at(d1) + p, at(panel) + 2 * i, sum);
                else
                    backward_tile(1, at(d0) + p, at(d1) + p, at(panel) + i, sum);
            }
            vec s = lane_sums(sum);
            for (long r = 0; r < 2 && b + r < batch; r++) {
                float *to = below + (b + r) * below_stride + i;
                if (inputs == INPUTS)
                    memcpy(to, (float *)&s + r * INPUTS, 4 * INPUTS);
                else
                    memcpy(to, (float *)&s + r * INPUTS, 4 * inputs);
            }
        }
    }
    for (long b = 0; b < batch; b++) {
        const float *h = l->h + b * l->h_stride;
        float *to = below + b * below_stride;
        for (long i = 0; i < l->weights.in; i++) to[i] = h[i] <= 0 ? 0 : to[i];
    }
}
