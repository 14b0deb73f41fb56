/* Train one job on all its batches of a round, in one call; see native/__init__.py.
 *
 * A step of ten samples is a few products, each too small for a library call. Here everything from the gather of a
 * batch to the updated weights stays in a core's caches, in one thread, without allocation inside a step. A job that
 * diverges ends with numbers that are not finite.
 */
#include "matmul.h"
#include "tilt.h"
#include "loss.h"
#include "optimizer.h"
#include "linear.h"
#include "conv.h"

/* Copy parameters from torch's order, weight (out, in) then bias (out,), to panels, or back to it. */
static void repack(const Weights *w, float *theta, float *panels, int to_theta) {
    enum { STRIP = 16 }; /* rows of a panel that stay in the first-level cache */
    for (long i = 0; i <= w->in; i += STRIP) {
        long end = i + STRIP < w->in ? i + STRIP : w->in + 1, inputs[STRIP];
        for (long k = i; k < end; k++) inputs[k - i] = k % w->channels * w->pixels + k / w->channels;
        for (long o = 0; o < w->out; o++) {
            long p = o / (2 * LANES) * 2, vecs = p + 1 < w->vectors ? 2 : 1;
            for (long k = i; k < end; k++) {
                float *flat = theta + (k < w->in ? o * w->in + inputs[k - i] : w->in * w->out + o);
                float *packed = panels + p * LANES * (w->in + 1) + k * vecs * LANES + o - p * LANES;
                if (to_theta)
                    *flat = *packed;
                else
                    *packed = *flat;
            }
        }
    }
}

/* One allocation for everything: a first pass (`base` is NULL) counts the bytes, a second hands out the memory. */
typedef struct {
    char *base;
    long used;
} Arena;

static void *arena_alloc(Arena *arena, long count, long size) {
    char *memory = arena->base ? arena->base + arena->used : NULL;
    arena->used += (count * size + 63) / 64 * 64;
    return memory;
}

static void alloc_weights(Arena *arena, Weights *w, long in, long out, long channels, const Optimizer *o,
                          int has_drift) {
    w->in = in, w->out = out, w->vectors = round_up(out) / LANES;
    w->channels = channels, w->pixels = in / channels;
    int is_adam = o->kind == ADAM || o->kind == ADAMW;
    long count = (in + 1) * round_up(out);
    w->w = arena_alloc(arena, count + LANES * round_up(out), 4); /* linear_backward reads past the last row */
    w->anchor = o->prox ? arena_alloc(arena, count, 4) : NULL;
    w->drift = has_drift ? arena_alloc(arena, count, 4) : NULL;
    w->mean = is_adam || o->momentum ? arena_alloc(arena, count, 4) : NULL;
    w->square_mean = is_adam ? arena_alloc(arena, count, 4) : NULL;
}

/* n, or one vector more, so that rows are an odd number of vectors: powers of two would share cache sets. */
static long odd_stride(long n) { return n / LANES % 2 ? n : n + LANES; }

typedef struct {
    ConvBlock *blocks;
    LinearLayer *layers;
    long block_count, layer_count, outputs, group_count;
    float *maps;          /* the output of a convolution for one sample */
    float *input_delta;   /* the deltas of a block's input for one sample */
    float *feature_delta; /* (batch, in of the first layer): the deltas of the last block's output */
    Samples samples;
    Group *groups;
} Net;

/* `conv_sizes` has height, width, channels, out, kernel and padding of every block; `widths` has the inputs of the
 * first linear layer and the outputs of all. */
static void alloc_net(Net *net, Arena *arena, const long *conv_sizes, const long *widths, long batch,
                      const Optimizer *o, int has_drift) {
    long max_maps = 0, max_input_delta = 0, channels = widths[0];
    net->blocks = arena_alloc(arena, net->block_count, sizeof(ConvBlock));
    net->layers = arena_alloc(arena, net->layer_count, sizeof(LinearLayer));
    for (long n = 0; n < net->block_count; n++, conv_sizes += 6) {
        ConvBlock block = {.height = conv_sizes[0], .width = conv_sizes[1], .channels = conv_sizes[2]}, *conv = &block;
        conv->kernel = conv_sizes[4], conv->padding = conv_sizes[5];
        conv->out_height = conv->height + 2 * conv->padding - conv->kernel + 1;
        conv->out_width = conv->width + 2 * conv->padding - conv->kernel + 1;
        long out = conv_sizes[3], pixels = (conv->out_height / 2) * (conv->out_width / 2);
        conv->row_size = (conv->width + 2 * conv->padding) * conv->channels;
        conv->image_size = (conv->height + 2 * conv->padding) * conv->row_size;
        alloc_weights(arena, &conv->weights, kernel_area(conv) * conv->channels, out, conv->channels, o,
                      has_drift);
        conv->input = arena_alloc(arena, batch * conv->image_size, 4);
        conv->argmax = arena_alloc(arena, batch * pixels * out, sizeof(int32_t));
        conv->delta = arena_alloc(arena, (conv->height + conv->kernel - 1) * delta_row(conv), 4);
        conv->gradient = arena_alloc(arena, (conv->weights.in + 1) * round_up(out), 4);
        conv->flipped =
            n ? arena_alloc(arena, (kernel_area(conv) * round_up(out) + 1) * round_up(conv->channels), 4) : NULL;
        long maps = conv->out_height * conv->out_width * round_up(out);
        long input_delta = conv->height * conv->width * round_up(conv->channels);
        max_maps = maps > max_maps ? maps : max_maps;
        max_input_delta = input_delta > max_input_delta ? input_delta : max_input_delta;
        channels = out;
        if (arena->base) net->blocks[n] = block;
    }
    for (long n = 0; n < net->layer_count; n++) {
        LinearLayer layer, *l = &layer;
        alloc_weights(arena, &l->weights, widths[n], widths[n + 1], n ? widths[n] : channels, o, has_drift);
        l->h_stride = odd_stride(round_up(widths[n] + 1)), l->delta_stride = odd_stride(round_up(widths[n + 1]));
        l->h = arena_alloc(arena, batch * l->h_stride, 4);
        l->delta = arena_alloc(arena, batch * l->delta_stride, 4);
        if (arena->base) net->layers[n] = layer;
    }
    net->maps = arena_alloc(arena, max_maps, 4);
    net->input_delta = arena_alloc(arena, max_input_delta, 4);
    net->feature_delta = arena_alloc(arena, net->block_count ? batch * widths[0] : 0, 4);
    Samples *s = &net->samples;
    s->log_sum = arena_alloc(arena, batch, sizeof(double));
    s->loss = arena_alloc(arena, batch, sizeof(double));
    s->slope = arena_alloc(arena, batch, sizeof(double));
    s->tilt_grad = arena_alloc(arena, batch, sizeof(double));
    s->label = arena_alloc(arena, batch, sizeof(int32_t));
    s->group = arena_alloc(arena, batch, sizeof(int32_t));
    s->target = arena_alloc(arena, batch, sizeof(float));
    net->groups = arena_alloc(arena, net->group_count + 1, sizeof(Group)); /* and one for the batch */
}

/* The weights of the n-th block or layer. */
static Weights *weights_of(const Net *net, long n) {
    return n < net->block_count ? &net->blocks[n].weights : &net->layers[n - net->block_count].weights;
}

/* Copy all parameters into the net, or back into theta; the anchor goes back if it moves. */
static void copy_parameters(const Net *net, float *theta, float *anchor, float *drift, const Optimizer *o,
                            int to_theta) {
    for (long n = 0; n < net->block_count + net->layer_count; n++) {
        const Weights *w = weights_of(net, n);
        long size = (w->in + 1) * w->out;
        repack(w, theta, w->w, to_theta);
        if (w->anchor && (!to_theta || o->anchor_rate)) repack(w, anchor, w->anchor, to_theta);
        if (w->drift && !to_theta) {
            repack(w, drift, w->drift, 0);
            for (long i = 0; o->kind == PLAIN_SGD && i < vector_count(w); i++) ((vec *)w->drift)[i] *= (float)-o->lr;
        }
        theta += size, anchor += size, drift += drift ? size : 0;
    }
}

static void move_anchors(const Net *net, float rate) {
    for (long n = 0; n < net->block_count + net->layer_count; n++) {
        const Weights *w = weights_of(net, n);
        vec *anchor = (vec *)w->anchor;
        for (long i = 0; i < vector_count(w); i++) anchor[i] += rate * (as_vec(w->w)[i] - anchor[i]);
    }
}

static void conv_forward(const Net *net, long batch) {
    for (long b = 0; b < batch; b++)
        for (long n = 0; n < net->block_count; n++) {
            const ConvBlock *conv = net->blocks + n, *next = n + 1 < net->block_count ? conv + 1 : NULL;
            convolve(conv, conv->input + b * conv->image_size, net->maps);
            float *to = next ? next->input + b * next->image_size + next->padding * (next->row_size + next->channels)
                             : net->layers->h + b * net->layers->h_stride;
            pool(conv, net->maps, to, next ? next->row_size : conv->out_width / 2 * conv->weights.out,
                 conv->argmax + b * (conv->out_height / 2) * (conv->out_width / 2) * conv->weights.out);
        }
}

static void conv_backward(const Net *net, long batch) {
    for (long n = 0; n < net->block_count; n++) {
        if (n) flip_kernel(net->blocks + n);
        memset(net->blocks[n].gradient, 0, vector_count(&net->blocks[n].weights) * sizeof(vec));
    }
    for (long b = 0; b < batch; b++) {
        const float *pooled = net->feature_delta + b * net->layers->weights.in;
        for (long n = net->block_count - 1; n >= 0; n--) {
            const ConvBlock *conv = net->blocks + n;
            long out = conv->weights.out, last = n == net->block_count - 1;
            unpool(conv, pooled, last ? out : round_up(out),
                   conv->argmax + b * (conv->out_height / 2) * (conv->out_width / 2) * out);
            add_weight_gradient(conv, conv->input + b * conv->image_size);
            if (n) convolve_backward(conv, net->input_delta);
            pooled = net->input_delta;
        }
    }
}

/* Pass the gradients of all weights to `use`; the sum of the results. */
static double use_gradients(const Net *net, long batch, UseGradient *use, const Step *step) {
    double total = 0;
    for (const LinearLayer *l = net->layers; l < net->layers + net->layer_count; l++)
        total += linear_gradient(l, batch, use, step);
    for (const ConvBlock *conv = net->blocks; conv < net->blocks + net->block_count; conv++)
        total += use(&conv->weights, 0, vector_count(&conv->weights), as_vec(conv->gradient), step);
    return total;
}

/* A step of any other optimiser. To clip the gradient, it is computed twice: it is not stored. */
static void optimizer_step(const Net *net, long batch, const Optimizer *o, long number) {
    Step step = make_step(o, number);
    if (o->clip_norm < INFINITY) { /* as torch.nn.utils.clip_grad_norm_ */
        double scale = o->clip_norm / (sqrt(use_gradients(net, batch, squared_norm, &step)) + 1e-6);
        step.scale = scale > 1 ? 1 : scale; /* keeps NaN */
    }
    use_gradients(net, batch, o->kind == SGD ? sgd_step : adam_step, &step);
}

static void step(const Net *net, const float *x, const int64_t *label, const float *target, const int64_t *group,
                 const int64_t *batch_indices, long batch, const Loss *loss, const Optimizer *o, long number) {
    LinearLayer *first = net->layers, *last = first + net->layer_count - 1;
    for (long b = 0; b < batch; b++) {
        if (net->block_count) {
            const ConvBlock *conv = net->blocks;
            load_image(conv, x + batch_indices[b] * conv->height * conv->width * conv->channels,
                       conv->input + b * conv->image_size);
        } else
            memcpy(first->h + b * first->h_stride, x + batch_indices[b] * first->weights.in, 4 * first->weights.in);
        if (label)
            net->samples.label[b] = label[batch_indices[b]];
        else
            net->samples.target[b] = target[batch_indices[b]];
        net->samples.group[b] = group[batch_indices[b]];
    }
    conv_forward(net, batch);
    for (LinearLayer *l = first; l <= last; l++) {
        float *out = l < last ? l[1].h : l->delta;
        long out_stride = l < last ? l[1].h_stride : l->delta_stride;
        matmul(l->h, l->h_stride, batch, (Inputs){1, l->weights.in, 0, 0, 1}, l->weights.w, l->weights.vectors, out,
               out_stride, l < last);
        /* the padding of the output has overwritten the 1 for the next layer's bias */
        for (long b = 0; l < last && b < batch; b++) out[b * out_stride + l->weights.out] = 1;
    }
    output_delta(last->delta, last->delta_stride, &net->samples, batch, net->outputs,
                 o->kind == PLAIN_SGD ? -o->lr : 1, loss, net->groups);
    /* all deltas before any update: a layer's delta needs the next layer's weights before their update */
    for (LinearLayer *l = last; l > first; l--) linear_backward(l, batch, l[-1].delta, l[-1].delta_stride);
    if (net->block_count) {
        linear_backward(first, batch, net->feature_delta, first->weights.in);
        conv_backward(net, batch);
    }
    if (o->kind != PLAIN_SGD) {
        optimizer_step(net, batch, o, number);
        return;
    }
    long is_first = number <= o->first_steps, all = o->first_steps < 0;
    for (LinearLayer *l = first; l <= last; l++)
        if (all || l->weights.is_first == is_first) linear_update(l, batch, o->lr * o->prox);
    for (long n = 0; n < net->block_count; n++)
        if (all || net->blocks[n].weights.is_first == is_first) apply_gradient(net->blocks + n, o->lr * o->prox);
}

enum { DONE, NO_MEMORY, BAD_LABEL, BAD_ORDER };

/* Samples have a `label`, or a number as `target`; the other one is NULL. */
int fedtilt_train(long block_count, const long *conv_sizes, long layer_count, const long *widths, float *theta,
                  float *anchor, float *drift, const long *is_first, const Loss *loss, const Optimizer *optimizer,
                  const float *x, const int64_t *label, const float *target, const int64_t *group, long samples,
                  const int64_t *order, long epochs, long epoch_samples, const int64_t *bounds, long batches,
                  long steps) {
    Net net = {.block_count = block_count, .layer_count = layer_count, .outputs = widths[layer_count]};
    for (long k = 0; k < loss->levels.count; k++) net.group_count += loss->levels.sizes[k];
    for (long n = 0; label && n < samples; n++)
        if (label[n] < 0 || label[n] >= net.outputs) return BAD_LABEL;
    for (long n = 0; n < epochs * epoch_samples; n++)
        if (order[n] < 0 || order[n] >= samples) return BAD_ORDER;

    Arena arena = {0};
    long max_batch = 0;
    for (long k = 0; k < batches; k++)
        if (bounds[k + 1] - bounds[k] > max_batch) max_batch = bounds[k + 1] - bounds[k];
    alloc_net(&net, &arena, conv_sizes, widths, max_batch, optimizer, drift != NULL);
    arena.base = aligned_alloc(64, arena.used);
    if (!arena.base) return NO_MEMORY;
    memset(arena.base, 0, arena.used); /* all padding stays 0 */
    arena.used = 0;
    alloc_net(&net, &arena, conv_sizes, widths, max_batch, optimizer, drift != NULL);

    copy_parameters(&net, theta, anchor, drift, optimizer, 0);
    for (long n = 0; n < block_count + layer_count; n++) weights_of(&net, n)->is_first = is_first[n];
    for (LinearLayer *l = net.layers; l < net.layers + layer_count; l++)
        for (long b = 0; b < max_batch; b++) l->h[b * l->h_stride + l->weights.in] = 1;
    for (long n = 0; n < steps; n++) {
        long k = n % batches;
        for (long r = 1; r <= optimizer->repeats; r++)
            step(&net, x, label, target, group, order + n / batches * epoch_samples + bounds[k],
                 bounds[k + 1] - bounds[k], loss, optimizer, n * optimizer->repeats + r);
        if (optimizer->anchor_rate) move_anchors(&net, optimizer->anchor_rate);
    }
    copy_parameters(&net, theta, anchor, drift, optimizer, 1);
    free(arena.base);
    return DONE;
}

/* A dropout mask: 1 where 24 random bits are at least `dropped`. The integers are those of `dropout.Masks.keep`. */
void fedtilt_keep(int32_t low, int32_t high, long start, long size, long dropped, uint8_t *mask) {
    for (long n = 0; n < size; n++) {
        uint32_t z = (uint32_t)(start + n) ^ (uint32_t)low;
        z = (z ^ z >> 16) * 0x7FEB352Du;
        z = (z ^ z >> 15 ^ (uint32_t)high) * 0x846CA68Bu;
        mask[n] = (z ^ z >> 16) >> 8 >= (uint32_t)dropped;
    }
}
