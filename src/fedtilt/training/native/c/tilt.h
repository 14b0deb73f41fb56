/* The gradient of the two-level tilted loss of a batch, in double precision; the reference is math/tilt.py. */
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    double mass;    /* sum of the members' weights */
    double extreme; /* the largest value for a positive tilt, the smallest for a negative one */
    double total;   /* sum of member_term */
    double value;   /* the tilted mean */
    double grad;    /* of the loss by the value */
} Group;

/* A tilted mean takes three passes over its members: add_member, the sum of member_term, then member_grad. */
static void add_member(Group *g, double x, double weight, double tilt) {
    if (g->mass == 0 || (tilt > 0 ? x > g->extreme : x < g->extreme)) g->extreme = x;
    g->mass += weight;
}

static double member_term(const Group *g, double x, double weight, double tilt) {
    if (tilt == 0) return weight * x;
    if (isinf(tilt)) return x == g->extreme ? weight : 0;
    return weight * expm1(tilt * (x - g->extreme));
}

static void finish_group(Group *g, double tilt) {
    if (tilt == 0)
        g->value = g->total / g->mass;
    else if (isinf(tilt))
        g->value = g->extreme;
    else {
        double mean = g->total / g->mass; /* of expm1; log1p is accurate unless this is close to -1 */
        g->value = g->extreme + (mean > -0.5 ? log1p(mean) : log((g->mass + g->total) / g->mass)) / tilt;
    }
}

static double member_grad(const Group *g, double x, double weight, double tilt) {
    if (tilt == 0) return weight / g->mass;
    if (isinf(tilt)) return member_term(g, x, weight, tilt) / g->total;
    return (weight + member_term(g, x, weight, tilt)) / (g->mass + g->total);
}

/* The gradient of the two-level tilted loss by each sample's loss: lam tilts over the samples of a group, tau over the
 * groups, weighted by size. */
static void tilt_grad(const double *loss, const int32_t *group, long batch, long group_count, double lam, double tau,
                      Group *groups, double *out) {
    Group whole = {0};
    memset(groups, 0, group_count * sizeof(Group));
    for (long b = 0; b < batch; b++) add_member(groups + group[b], loss[b], 1, lam);
    for (long b = 0; b < batch; b++) groups[group[b]].total += member_term(groups + group[b], loss[b], 1, lam);
    for (Group *g = groups; g < groups + group_count; g++)
        if (g->mass) {
            finish_group(g, lam);
            add_member(&whole, g->value, g->mass, tau);
        }
    for (Group *g = groups; g < groups + group_count; g++)
        if (g->mass) whole.total += member_term(&whole, g->value, g->mass, tau);
    for (Group *g = groups; g < groups + group_count; g++)
        if (g->mass) g->grad = member_grad(&whole, g->value, g->mass, tau);
    for (long b = 0; b < batch; b++) out[b] = groups[group[b]].grad * member_grad(groups + group[b], loss[b], 1, lam);
}
