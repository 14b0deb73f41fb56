/* The gradient of the nested tilted loss of a batch, in double precision; the reference is math/tilt.py. */
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

/* Groups of samples, and groups of groups: those of the innermost level first, the whole batch last. */
typedef struct {
    long count;            /* levels of groups, without the batch */
    const long *sizes;     /* the number of groups in every level */
    const int32_t *parent; /* of every group, the group in the next level */
    const double *tilts;   /* count + 1: over the samples of a group, over the groups of the next level, … */
} Levels;

static const double MIN_UTILITY = 0.2; /* as in local_job.py */

/* The gradient of the nested tilted loss R, or of -log(utility - R), by each sample's loss; a group weighs as much as
 * its members together. */
static void tilt_grad(const double *loss, const int32_t *group, long batch, const Levels *levels, Group *groups,
                      double utility, double *out) {
    long begin = 0, end = 0;
    for (long k = 0; k < levels->count; k++) end += levels->sizes[k];
    memset(groups, 0, (end + 1) * sizeof(Group));
    groups[end].grad = 1;
    double lam = levels->tilts[0];
    for (long b = 0; b < batch; b++) add_member(groups + group[b], loss[b], 1, lam);
    for (long b = 0; b < batch; b++) groups[group[b]].total += member_term(groups + group[b], loss[b], 1, lam);
    for (long k = 0; k < levels->count; k++) { /* up: from groups to groups of groups */
        double tilt = levels->tilts[k + 1];
        end = begin + levels->sizes[k];
        for (long i = begin; i < end; i++)
            if (groups[i].mass) {
                finish_group(groups + i, levels->tilts[k]);
                add_member(groups + levels->parent[i], groups[i].value, groups[i].mass, tilt);
            }
        for (long i = begin; i < end; i++)
            if (groups[i].mass) {
                Group *parent = groups + levels->parent[i];
                parent->total += member_term(parent, groups[i].value, groups[i].mass, tilt);
            }
        begin = end;
    }
    if (utility < INFINITY) {
        finish_group(groups + end, levels->tilts[levels->count]);
        groups[end].grad = 1 / fmax(utility - groups[end].value, MIN_UTILITY);
    }
    for (long k = levels->count - 1; k >= 0; k--) { /* down: the chain rule */
        end = begin, begin -= levels->sizes[k];
        for (long i = begin; i < end; i++)
            if (groups[i].mass) {
                const Group *parent = groups + levels->parent[i];
                groups[i].grad =
                    parent->grad * member_grad(parent, groups[i].value, groups[i].mass, levels->tilts[k + 1]);
            }
    }
    for (long b = 0; b < batch; b++) out[b] = groups[group[b]].grad * member_grad(groups + group[b], loss[b], 1, lam);
}
