/* The steps of torch.optim, in one pass over the weights, their gradient and its running means. Plain SGD does not come
 * here: it adds the gradient to the weights as it is computed. */

typedef struct {
    double lr;
    double prox; /* the strength of the proximal term, 0 for none */
    double momentum, weight_decay;
    double clip_norm; /* the largest norm of the gradient; INFINITY: any */
    long kind;        /* PLAIN_SGD: no momentum, weight decay or clipping */
    long nesterov;
} Optimizer;

enum { PLAIN_SGD, SGD, ADAM, ADAMW }; /* as in native/__init__.py */

static const double BETA1 = 0.9, BETA2 = 0.999, EPSILON = 1e-8; /* torch's defaults */

static long vector_count(const Weights *w) { return (w->in + 1) * w->vectors; }

/* The gradient of the loss and the proximal term. */
INLINE vec full_gradient(const Weights *w, long i, float prox) {
    vec gradient = as_vec(w->gradient)[i];
    if (w->anchor) gradient += prox * (as_vec(w->w)[i] - as_vec(w->anchor)[i]);
    return gradient;
}

static double squared_norm(const Weights *w, float prox) {
    enum { RUN = 64 }; /* vectors that are summed in single precision */
    double total = 0;
    for (long i = 0, count = vector_count(w); i < count; i += RUN) {
        vec sum = {0};
        for (long k = i; k < count && k < i + RUN; k++) {
            vec gradient = full_gradient(w, k, prox);
            sum += gradient * gradient;
        }
        for (int lane = 0; lane < LANES; lane++) total += sum[lane];
    }
    return total;
}

INLINE vec square_root(vec x) {
    for (int lane = 0; lane < LANES; lane++) x[lane] = sqrtf(x[lane]);
    return x;
}

static void sgd_step(const Weights *weights, const Optimizer *o, float scale) {
    vec *w = (vec *)weights->w, *gradient = (vec *)weights->gradient, *momentum = (vec *)weights->mean;
    float lr = o->lr, prox = o->prox, beta = o->momentum, decay = o->weight_decay;
    float own = o->nesterov ? 1 : 0, kept = o->nesterov ? beta : 1; /* the parts of gradient and momentum in a step */
    for (long i = 0, count = vector_count(weights); i < count; i++) {
        vec g = scale * full_gradient(weights, i, prox) + decay * w[i];
        if (momentum) {
            momentum[i] = beta * momentum[i] + g;
            g = own * g + kept * momentum[i];
        }
        w[i] -= lr * g;
        gradient[i] = (vec){0};
    }
}

static void adam_step(const Weights *weights, const Optimizer *o, float scale, long number) {
    vec *w = (vec *)weights->w, *gradient = (vec *)weights->gradient;
    vec *mean = (vec *)weights->mean, *square_mean = (vec *)weights->square_mean;
    float prox = o->prox, beta2 = BETA2, epsilon = EPSILON;
    float step_size = o->lr / (1 - pow(BETA1, number)), correction = 1 / sqrt(1 - pow(BETA2, number));
    float decay = o->kind == ADAM ? o->weight_decay : 0; /* added to the gradient; AdamW shrinks the weights instead */
    float shrink = o->kind == ADAMW ? 1 - o->lr * o->weight_decay : 1;
    for (long i = 0, count = vector_count(weights); i < count; i++) {
        vec g = scale * full_gradient(weights, i, prox) + decay * w[i];
        mean[i] += (float)(1 - BETA1) * (g - mean[i]);
        square_mean[i] = beta2 * square_mean[i] + (float)(1 - BETA2) * g * g;
        w[i] = shrink * w[i] - step_size * mean[i] / (square_root(square_mean[i]) * correction + epsilon);
        gradient[i] = (vec){0};
    }
}
