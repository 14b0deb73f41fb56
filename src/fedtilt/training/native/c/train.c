/* One lane of a chain through all its batches of a round, in one call: the native CPU way. See native.py.
 *
 * A step of ten samples is a few products that are too small for a library call each. Here all that happens between
 * the gather of a batch and the updated weights stays in a core's caches, in one thread, without allocation inside a
 * step. A lane that diverges ends with numbers that are not finite.
 */
#include "matmul.h"
#include "tilt.h"
#include "linear.h"
#include "conv.h"

/* From torch's order, weight (out, in) then bias (out,), to panels; or back. */
static void repack(const Weights *l, float *theta, float *panels, int back) {
    enum { STRIP = 16 }; /* rows of a panel that stay in the first-level cache */
    for (long i = 0; i <= l->in; i += STRIP)
        for (long o = 0; o < l->out; o++) {
            long p = o / (2 * LANES) * 2, wide = p + 1 < l->vectors ? 2 : 1;
            for (long k = i; k <= l->in && k < i + STRIP; k++) {
                long input = k % l->channels * l->spots + k / l->channels;
                float *flat = theta + (k < l->in ? o * l->in + input : l->in * l->out + o);
                float *packed = panels + p * LANES * (l->in + 1) + k * wide * LANES + o - p * LANES;
                if (back)
                    *flat = *packed;
                else
                    *packed = *flat;
            }
        }
}

/* Memory is counted in a first pass over all that is needed (`base` is NULL), and given out in a second. */
typedef struct {
    char *base;
    long used;
} Room;

static void *take(Room *room, long count, long size) {
    char *here = room->base ? room->base + room->used : NULL;
    room->used += (count * size + 63) / 64 * 64;
    return here;
}

static void take_weights(Room *room, Weights *w, long in, long out, long channels, int pulled) {
    w->in = in, w->out = out, w->vectors = padded(out) / LANES;
    w->channels = channels, w->spots = in / channels;
    w->w = take(room, (in + 1 + LANES) * padded(out), 4); /* backward looks past the last row */
    w->anchor = pulled ? take(room, (in + 1) * padded(out), 4) : NULL;
}

static long uneven(long n) { return n / LANES % 2 ? n : n + LANES; } /* rows at powers of two would share cache sets */

typedef struct {
    Block *blocks;
    Layer *layers;
    long block_count, layer_count, classes;
    float *maps;     /* what a convolution gives for one sample */
    float *below;    /* deltas of one sample's pooled image */
    float *features; /* (batch, in of the first layer): deltas of what the blocks give */
    double *loss, *share;
    int32_t *label;
    Cell *cell;
} Net;

/* `images` holds height, width, channels, out and size of every block; `width` the inputs and outputs of the layers. */
static void lay_out(Net *net, Room *room, const long *images, const long *width, long batch, int pulled) {
    long most_maps = 0, most_below = 0, channels = width[0];
    net->blocks = take(room, net->block_count, sizeof(Block));
    net->layers = take(room, net->layer_count, sizeof(Layer));
    for (long n = 0; n < net->block_count; n++, images += 5) {
        Block here = {.height = images[0], .width = images[1], .channels = images[2], .size = images[4]}, *k = &here;
        long out = images[3];
        k->frame = k->size / 2;
        k->image_row = (k->width + 2 * k->frame) * k->channels;
        k->image_size = (k->height + 2 * k->frame) * k->image_row;
        take_weights(room, &k->weights, taps(k) * k->channels, out, k->channels, pulled);
        k->image = take(room, batch * k->image_size, 4);
        k->which = take(room, batch * (k->height / 2) * (k->width / 2) * out, sizeof(int32_t));
        k->delta = take(room, (k->height + 2 * k->frame) * (k->width + 2 * k->frame) * padded(out), 4);
        k->gradient = take(room, (k->weights.in + 1) * padded(out), 4);
        k->turned = n ? take(room, (taps(k) * padded(out) + 1) * padded(k->channels), 4) : NULL;
        long maps = k->height * k->width * padded(out), below = k->height * k->width * padded(k->channels);
        most_maps = maps > most_maps ? maps : most_maps;
        most_below = below > most_below ? below : most_below;
        channels = out;
        if (room->base) net->blocks[n] = here;
    }
    for (long n = 0; n < net->layer_count; n++) {
        Layer here, *l = &here;
        take_weights(room, &l->weights, width[n], width[n + 1], n ? width[n] : channels, pulled);
        l->h_stride = uneven(padded(width[n] + 1)), l->delta_stride = uneven(padded(width[n + 1]));
        l->h = take(room, batch * l->h_stride, 4);
        l->delta = take(room, batch * l->delta_stride, 4);
        if (room->base) net->layers[n] = here;
    }
    net->maps = take(room, most_maps, 4);
    net->below = take(room, most_below, 4);
    net->features = take(room, net->block_count ? batch * width[0] : 0, 4);
    net->loss = take(room, batch, sizeof(double));
    net->share = take(room, batch, sizeof(double));
    net->label = take(room, batch, sizeof(int32_t));
    net->cell = take(room, net->classes, sizeof(Cell));
}

/* Parameters into the net, or out of it. */
static void exchange(const Net *net, float *theta, float *anchor, int back) {
    for (long n = 0; n < net->block_count + net->layer_count; n++) {
        const Weights *w = n < net->block_count ? &net->blocks[n].weights : &net->layers[n - net->block_count].weights;
        repack(w, theta, w->w, back);
        if (w->anchor && !back) repack(w, anchor, w->anchor, 0);
        theta += (w->in + 1) * w->out, anchor += (w->in + 1) * w->out;
    }
}

static void images_forward(const Net *net, long batch) {
    for (long b = 0; b < batch; b++)
        for (long n = 0; n < net->block_count; n++) {
            const Block *k = net->blocks + n, *next = n + 1 < net->block_count ? k + 1 : NULL;
            convolve(k, k->image + b * k->image_size, net->maps);
            float *to = next ? next->image + b * next->image_size + next->frame * (next->image_row + next->channels)
                             : net->layers->h + b * net->layers->h_stride;
            pool(k, net->maps, to, next ? next->image_row : k->width / 2 * k->weights.out,
                 k->which + b * (k->height / 2) * (k->width / 2) * k->weights.out);
        }
}

static void images_backward(const Net *net, long batch) {
    for (long n = 1; n < net->block_count; n++) turn(net->blocks + n);
    for (long b = 0; b < batch; b++) {
        const float *pooled = net->features + b * net->layers->weights.in;
        for (long n = net->block_count - 1; n >= 0; n--) {
            const Block *k = net->blocks + n;
            long out = k->weights.out, last = n == net->block_count - 1;
            unpool(k, pooled, last ? out : padded(out), k->which + b * (k->height / 2) * (k->width / 2) * out);
            add_gradient(k, k->image + b * k->image_size);
            if (n) convolve_back(k, net->below);
            pooled = net->below;
        }
    }
}

static void step(const Net *net, const float *x, const int64_t *y, const int64_t *rows, long batch, double lr,
                 double drawn, double tau, double lam) {
    Layer *first = net->layers, *last = first + net->layer_count - 1;
    for (long b = 0; b < batch; b++) {
        if (net->block_count) {
            const Block *k = net->blocks;
            frame_image(k, x + rows[b] * k->height * k->width * k->channels, k->image + b * k->image_size);
        } else
            memcpy(first->h + b * first->h_stride, x + rows[b] * first->weights.in, 4 * first->weights.in);
        net->label[b] = y[rows[b]];
    }
    images_forward(net, batch);
    for (Layer *l = first; l <= last; l++) {
        float *out = l < last ? l[1].h : l->delta;
        long out_stride = l < last ? l[1].h_stride : l->delta_stride;
        forward(l->h, l->h_stride, batch, 1, l->weights.in, 0, l->weights.w, l->weights.vectors, out, out_stride,
                l < last);
        for (long b = 0; l < last && b < batch; b++) out[b * out_stride + l->weights.out] = 1; /* padding ended there */
    }
    output_delta(last->delta, last->delta_stride, net->label, batch, net->classes, lr, tau, lam, net->loss, net->share,
                 net->cell);
    /* all deltas before any update: a layer's delta needs the weights of the next as they were */
    for (Layer *l = last; l > first; l--) backward(l, batch, l[-1].delta, l[-1].delta_stride);
    if (net->block_count) {
        backward(first, batch, net->features, first->weights.in);
        images_backward(net, batch);
    }
    for (Layer *l = first; l <= last; l++) update(l, batch, drawn);
    for (long n = 0; n < net->block_count; n++) apply_gradient(net->blocks + n, drawn);
}

enum { DONE, NO_MEMORY, BAD_LABEL, BAD_ORDER };

int fedtilt_train(long block_count, const long *images, long layer_count, const long *width, float *theta,
                    float *anchor, double lr, double pull, double tau, double lam, const float *x,
                    const int64_t *y, long samples, const int64_t *order, long epochs, long size) {
    Net net = {.block_count = block_count, .layer_count = layer_count, .classes = width[layer_count]};
    for (long n = 0; n < samples; n++)
        if (y[n] < 0 || y[n] >= net.classes) return BAD_LABEL;
    for (long n = 0; n < epochs * samples; n++)
        if (order[n] < 0 || order[n] >= samples) return BAD_ORDER;
    if (fabs(tau) < 1e-30) tau = 0; /* as in tilt.py */
    if (fabs(lam) < 1e-30) lam = 0;

    Room room = {0};
    long batch_most = size < samples ? size : samples;
    lay_out(&net, &room, images, width, batch_most, pull != 0);
    room.base = aligned_alloc(64, room.used);
    if (!room.base) return NO_MEMORY;
    memset(room.base, 0, room.used); /* frames and padding stay 0 */
    room.used = 0;
    lay_out(&net, &room, images, width, batch_most, pull != 0);

    exchange(&net, theta, anchor, 0);
    for (Layer *l = net.layers; l < net.layers + layer_count; l++)
        for (long b = 0; b < batch_most; b++) l->h[b * l->h_stride + l->weights.in] = 1;
    for (long n = 0; n < epochs * samples; n += samples)
        for (long first = 0; first < samples; first += size) {
            long batch = samples - first < size ? samples - first : size;
            step(&net, x, y, order + n + first, batch, lr, lr * pull, tau, lam);
        }
    exchange(&net, theta, anchor, 1);
    free(room.base);
    return DONE;
}
