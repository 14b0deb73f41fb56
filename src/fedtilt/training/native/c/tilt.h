/* The two-level tilted loss of a batch: what each sample counts for, in double precision like tilt.py. */
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    double mass, edge, total, value, share;
} Cell;

/* A tilted mean is made in three passes over its members; these are what each does with one. */
static void meet(Cell *c, double x, double weight, double tilt) {
    if (c->mass == 0 || (tilt > 0 ? x > c->edge : x < c->edge)) c->edge = x;
    c->mass += weight;
}

static double excess(const Cell *c, double x, double weight, double tilt) {
    if (tilt == 0) return weight * x;
    if (isinf(tilt)) return x == c->edge ? weight : 0;
    return weight * expm1(tilt * (x - c->edge));
}

static void close_cell(Cell *c, double tilt) {
    if (tilt == 0)
        c->value = c->total / c->mass;
    else if (isinf(tilt))
        c->value = c->edge;
    else {
        double mean = c->total / c->mass; /* of expm1; its log1p is accurate unless it is close to -1 */
        c->value = c->edge + (mean > -0.5 ? log1p(mean) : log((c->mass + c->total) / c->mass)) / tilt;
    }
}

static double share(const Cell *c, double x, double weight, double tilt) {
    if (tilt == 0) return weight / c->mass;
    if (isinf(tilt)) return excess(c, x, weight, tilt) / c->total;
    return (weight + excess(c, x, weight, tilt)) / (c->mass + c->total);
}

/* What each sample counts for: the slope of the two-level tilted loss, lam over the samples of a class, tau over the
 * classes by size. */
static void shares(const double *loss, const int32_t *label, long batch, long classes, double lam, double tau,
                   Cell *cell, double *out) {
    Cell whole = {0};
    memset(cell, 0, classes * sizeof(Cell));
    for (long b = 0; b < batch; b++) meet(cell + label[b], loss[b], 1, lam);
    for (long b = 0; b < batch; b++) cell[label[b]].total += excess(cell + label[b], loss[b], 1, lam);
    for (Cell *c = cell; c < cell + classes; c++)
        if (c->mass) {
            close_cell(c, lam);
            meet(&whole, c->value, c->mass, tau);
        }
    for (Cell *c = cell; c < cell + classes; c++)
        if (c->mass) whole.total += excess(&whole, c->value, c->mass, tau);
    for (Cell *c = cell; c < cell + classes; c++)
        if (c->mass) c->share = share(&whole, c->value, c->mass, tau);
    for (long b = 0; b < batch; b++) out[b] = cell[label[b]].share * share(cell + label[b], loss[b], 1, lam);
}

/* From logits, in `z`, to -lr times the slope of the loss by them. */
static void output_delta(float *z, long stride, const int32_t *label, long batch, long classes, double lr, double tau,
                         double lam, double *loss, double *weight, Cell *cell) {
    for (long b = 0; b < batch; b++) {
        const float *row = z + b * stride;
        double top = row[0], sum = 0;
        for (long k = 1; k < classes; k++) top = row[k] > top ? row[k] : top;
        for (long k = 0; k < classes; k++) sum += exp(row[k] - top);
        loss[b] = log(sum) + (top - row[label[b]]);
    }
    shares(loss, label, batch, classes, lam, tau, cell, weight);
    for (long b = 0; b < batch; b++) {
        float *row = z + b * stride;
        double log_sum = loss[b] + row[label[b]];
        for (long k = 0; k < classes; k++)
            row[k] = -lr * weight[b] * (exp(row[k] - log_sum) - (k == label[b]));
    }
}

