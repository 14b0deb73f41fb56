/* The loss of a batch and its gradient by the outputs, in double precision; the reference is math/losses.py. */

typedef struct {
    Levels levels;
    double label_smoothing;
    double gamma;                /* of the focal loss; 0: the cross-entropy */
    double gce_q;                /* of the generalised cross-entropy; 0: the cross-entropy */
    double alpha, reverse;       /* of the symmetric cross-entropy: weights of the cross-entropy and of 1 - p */
    const double *class_weights; /* NULL: 1 each */
    double number_scale;         /* of a number: this times Huber's loss of the first output; 0: classes */
    double huber_delta;          /* the error from which on Huber's loss is linear; INFINITY: half the squared error */
    double utility;              /* -log(utility - loss) is minimised; INFINITY: the loss itself */
} Loss;

/* What is kept of every sample of a batch. */
typedef struct {
    double *log_sum;   /* of the exponentials of the logits */
    double *loss;      /* before the tilts */
    double *slope;     /* the derivative of `loss` by the cross-entropy, or by the first output */
    double *tilt_grad; /* the gradient of the tilted loss by `loss` */
    int32_t *label, *group;
    float *target;     /* a number in place of the label */
} Samples;

/* The loss of a sample with this cross-entropy, and its derivative by that. */
static double class_loss(const Loss *loss, double cross_entropy, int32_t label, double *slope) {
    double value = cross_entropy, weight = loss->class_weights ? loss->class_weights[label] : 1;
    *slope = weight;
    if (loss->gamma) {
        double error = -expm1(-cross_entropy), power = pow(error, loss->gamma);
        value *= power;
        *slope *= error <= 0 ? 0 : power + loss->gamma * power / error * (1 - error) * cross_entropy;
    }
    if (loss->gce_q) {
        value = -expm1(-loss->gce_q * cross_entropy) / loss->gce_q;
        *slope *= exp(-loss->gce_q * cross_entropy);
    }
    if (loss->reverse || loss->alpha != 1) {
        value = loss->alpha * cross_entropy - loss->reverse * expm1(-cross_entropy);
        *slope *= loss->alpha + loss->reverse * exp(-cross_entropy);
    }
    return weight * value;
}

/* The losses of samples with labels, and their slopes. */
static void class_losses(const float *z, long stride, const Samples *s, long batch, long classes, const Loss *loss) {
    double smoothing = loss->label_smoothing;
    for (long b = 0; b < batch; b++) {
        const float *row = z + b * stride;
        double top = row[0], sum = 0, total = 0;
        for (long k = 1; k < classes; k++) top = row[k] > top ? row[k] : top;
        for (long k = 0; k < classes; k++) sum += exp(row[k] - top), total += row[k];
        float logit = row[s->label[b]];
        double cross_entropy = log(sum) + (top - logit);
        s->log_sum[b] = cross_entropy + logit;
        if (smoothing) cross_entropy += smoothing * (logit - total / classes);
        s->loss[b] = class_loss(loss, cross_entropy, s->label[b], s->slope + b);
    }
}

/* The losses of samples with numbers as targets, and their slopes. */
static void number_losses(const float *z, long stride, const Samples *s, long batch, const Loss *loss) {
    double delta = loss->huber_delta;
    for (long b = 0; b < batch; b++) {
        double error = (double)z[b * stride] - s->target[b], size = fabs(error);
        s->loss[b] = loss->number_scale * (size <= delta ? error * error / 2 : delta * (size - delta / 2));
        s->slope[b] = loss->number_scale * (size <= delta ? error : copysign(delta, error));
    }
}

/* Replace the outputs in `z` by `scale` times the gradient of the loss by them. */
static void output_delta(float *z, long stride, const Samples *s, long batch, long outputs, double scale,
                         const Loss *loss, Group *groups) {
    double others = loss->label_smoothing / outputs, own = 1 - loss->label_smoothing + others;
    int is_number = loss->number_scale != 0;
    if (is_number)
        number_losses(z, stride, s, batch, loss);
    else
        class_losses(z, stride, s, batch, outputs, loss);
    tilt_grad(s->loss, s->group, batch, &loss->levels, groups, loss->utility, s->tilt_grad);
    for (long b = 0; b < batch; b++) {
        float *row = z + b * stride;
        double factor = scale * s->tilt_grad[b] * s->slope[b];
        for (long k = 0; k < outputs; k++)
            row[k] = factor * (is_number ? k == 0 : exp(row[k] - s->log_sum[b]) - (k == s->label[b] ? own : others));
    }
}
