/* The steps of torch.optim: one pass over the weights, their gradient and its running means. Plain SGD does not come
 * here: it adds the gradient to the weights as it is computed. */

typedef struct {
    double lr;
    double prox; /* the strength of the proximal term, 0 for none */
    double momentum, weight_decay;
    double clip_norm; /* the largest norm of the gradient; INFINITY: any */
    double anchor_rate; /* after the steps on a batch, the anchor moves by this share of the way to the weights */
    long kind;        /* PLAIN_SGD: no momentum, weight decay or clipping */
    long nesterov;
    long repeats;     /* steps on every batch */
    long first_steps; /* how many train the layers with `is_first`, before those that train the others; -1: all train */
} Optimizer;

enum { PLAIN_SGD, SGD, ADAM, ADAMW }; /* as in native/__init__.py */

static const double BETA1 = 0.9, BETA2 = 0.999, EPSILON = 1e-8; /* torch's defaults */

typedef struct {
    const Optimizer *optimizer;
    float scale;                 /* of the gradient: less than 1 where it is clipped */
    float step_size, correction; /* of Adam, whose running means start at 0 */
} Step;

/* The `number`-th step of a job, from 1. */
static Step make_step(const Optimizer *o, long number) {
    double step_size = o->lr / (1 - pow(BETA1, number)), correction = 1 / sqrt(1 - pow(BETA2, number));
    return (Step){.optimizer = o, .scale = 1, .step_size = step_size, .correction = correction};
}

/* What is done with `count` vectors of a gradient, those of the weights from vector `first`; the sum of the results
 * counts. */
typedef double UseGradient(const Weights *weights, long first, long count, const vec *gradient, const Step *step);

/* The gradient of the loss, the proximal term and the drift. */
INLINE vec add_prox(vec gradient, const Weights *weights, long i, float prox) {
    if (weights->anchor) gradient += prox * (as_vec(weights->w)[i] - as_vec(weights->anchor)[i]);
    if (weights->drift) gradient += as_vec(weights->drift)[i];
    return gradient;
}

static double squared_norm(const Weights *weights, long first, long count, const vec *gradient, const Step *step) {
    enum { RUN = 64 }; /* vectors that are summed in single precision */
    float prox = step->optimizer->prox;
    double total = 0;
    for (long i = 0; i < count; i += RUN) {
        vec sum = {0};
        for (long k = i; k < count && k < i + RUN; k++) {
            vec g = add_prox(gradient[k], weights, first + k, prox);
            sum += g * g;
        }
        for (int lane = 0; lane < LANES; lane++) total += sum[lane];
    }
    return total;
}

static double sgd_step(const Weights *weights, long first, long count, const vec *gradient, const Step *step) {
    const Optimizer *o = step->optimizer;
    vec *w = (vec *)weights->w, *momentum = (vec *)weights->mean;
    float scale = step->scale, lr = o->lr, prox = o->prox, beta = o->momentum, decay = o->weight_decay;
    float own = o->nesterov, kept = o->nesterov ? beta : 1; /* the parts of gradient and momentum in a step */
    for (long i = first; i < first + count; i++) {
        vec g = scale * add_prox(*gradient++, weights, i, prox) + decay * w[i];
        if (momentum) {
            momentum[i] = beta * momentum[i] + g;
            g = own * g + kept * momentum[i];
        }
        w[i] -= lr * g;
    }
    return 0;
}

INLINE vec square_root(vec x) {
    for (int lane = 0; lane < LANES; lane++) x[lane] = sqrtf(x[lane]);
    return x;
}

static double adam_step(const Weights *weights, long first, long count, const vec *gradient, const Step *step) {
    const Optimizer *o = step->optimizer;
    vec *w = (vec *)weights->w, *mean = (vec *)weights->mean, *square_mean = (vec *)weights->square_mean;
    float scale = step->scale, step_size = step->step_size, correction = step->correction, prox = o->prox;
    float decay = o->kind == ADAM ? o->weight_decay : 0; /* added to the gradient; AdamW shrinks the weights instead */
    float shrink = o->kind == ADAMW ? 1 - o->lr * o->weight_decay : 1;
    for (long i = first; i < first + count; i++) {
        vec g = scale * add_prox(*gradient++, weights, i, prox) + decay * w[i];
        mean[i] += (float)(1 - BETA1) * (g - mean[i]);
        square_mean[i] = (float)BETA2 * square_mean[i] + (float)(1 - BETA2) * g * g;
        w[i] = shrink * w[i] - step_size * mean[i] / (square_root(square_mean[i]) * correction + (float)EPSILON);
    }
    return 0;
}
