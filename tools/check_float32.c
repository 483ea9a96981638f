/* Checks the float32 kernels at every float, in a few minutes: the largest error in units in the last place, and where,
 * of f and df/dx, exact and rational, at sigma = 1 and 0.7, compared with independent formulas in double.  If the
 * function itself changes, change truth() too.
 *
 *   cd iglu/kernels/csrc
 *   gcc -O2 -ffp-contract=off -fno-math-errno -fno-trapping-math -mprefer-vector-width=512 -I. \
 *       -o ~/check_float32 ../../../tools/check_float32.c run.c baseline.c avx2.c avx512.c -O3 -lm -lpthread
 *   ~/check_float32 avx2   (every float; ~/check_float32 avx2 61: every 61st)
 *
 * Where the true result is subnormal or overflows, only NaN is an error.  Exits with 1 if an error exceeds its limit. */

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

#define THREADS 2
#define CHUNK 4096
#define PI 3.141592653589793

enum { EXACT_VALUE, EXACT_DF_DX, RATIONAL_VALUE, RATIONAL_DF_DX, KINDS };
static const char *const names[] = {"exact value", "exact df/dx", "rational value", "rational df/dx"};
static const double limits[] = {2.1, 3.9, 2.1, 3.9};
static const double sigmas[] = {1, 0.7};

typedef struct {
    uint64_t begin, end, stride;
    double sigma, worst[KINDS];
    float where[KINDS];
} share;

/* With t = 1/|u|: arctan(t), and arctan(t) - t/(1+t^2) by its series where it would cancel. */
static void truth(double x, double sigma, double *result)
{
    double a = fabs(sigma * x), t = 1 / a, z = t * t;
    double angle = a == 0 ? PI / 2 : atan(t);
    double rest = 8. / 9 - z * (10. / 11 - z * 12. / 13);
    double series = t * z * (2. / 3 - z * (4. / 5 - z * (6. / 7 - z * rest)));
    double df_dx_tail = (a == 0 ? PI / 2 : t < 0.05 ? series : angle - 1 / (a + t)) / PI;
    double gate_tail = angle / PI, r = 1 / (1 + a);
    result[EXACT_VALUE] = x < 0 ? x * gate_tail : x * (1 - gate_tail);
    result[EXACT_DF_DX] = x < 0 ? df_dx_tail : 1 - df_dx_tail;
    result[RATIONAL_VALUE] = x < 0 ? x * r / 2 : x * (1 - r / 2);
    result[RATIONAL_DF_DX] = x < 0 ? r * r / 2 : 1 - r * r / 2;
}

static void check(share *s, const float *x, int n)
{
    static const float one = 1;
    float y[KINDS][CHUNK];
    for (int kind = 0; kind < KINDS; kind++) {
        int is_df_dx = kind == EXACT_DF_DX || kind == RATIONAL_DF_DX;
        iglu_call call = {.operation = is_df_dx ? IGLU_VALUE_BACKWARD : IGLU_VALUE,
                          .family = kind < RATIONAL_VALUE ? IGLU_EXACT : IGLU_RATIONAL,
                          .dtype = IGLU_F32,
                          .dimensions = 1,
                          .sizes = {n},
                          .sigma = s->sigma};
        call.data[IGLU_X] = (char *)x, call.strides[IGLU_X][0] = 1;
        call.data[IGLU_FIRST] = (char *)y[kind], call.strides[IGLU_FIRST][0] = 1;
        if (is_df_dx)
            call.data[IGLU_GRAD] = (char *)&one; /* stride 0 */
        iglu_run(&call);
    }
    for (int i = 0; i < n; i++) {
        double expected[KINDS];
        truth(x[i], s->sigma, expected);
        for (int kind = 0; kind < KINDS; kind++) {
            double size = fabs(expected[kind]), error = INFINITY;
            if (size < 0x1p-126 && y[kind][i] == y[kind][i])
                continue;
            uint64_t bits;
            memcpy(&bits, &size, sizeof bits);
            bits = (bits & 0x7ff0000000000000) - (23ull << 52); /* the last place of a float of this size */
            double unit;
            memcpy(&unit, &bits, sizeof unit);
            if (y[kind][i] == y[kind][i])
                error = fabs(y[kind][i] - expected[kind]) / unit;
            if (error > s->worst[kind])
                s->worst[kind] = error, s->where[kind] = x[i];
        }
    }
}

static void *work(void *argument)
{
    share *s = argument;
    float x[CHUNK];
    int n = 0;
    for (uint64_t pattern = s->begin; pattern < s->end; pattern += s->stride) {
        uint32_t bits = (uint32_t)pattern;
        memcpy(x + n, &bits, sizeof bits);
        n += isfinite(x[n]) ? 1 : 0;
        if (n == CHUNK) {
            check(s, x, n);
            n = 0;
        }
    }
    check(s, x, n);
    return NULL;
}

int main(int count, char **arguments)
{
    if (count < 2 || iglu_use(arguments[1]) != 0) {
        fprintf(stderr, "usage: %s baseline|avx2|avx512 [stride]; the instruction set must be supported by this processor\n", arguments[0]);
        return 2;
    }
    uint64_t stride = count > 2 ? strtoull(arguments[2], NULL, 10) : 1, all = 1ull << 32;
    int failed = 0;
    printf("%s, every %llu. float\n", iglu_capability(), (unsigned long long)stride);
    for (int s = 0; s < 2; s++) {
        share shares[THREADS] = {0};
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) {
            shares[i].begin = all / THREADS * i, shares[i].end = all / THREADS * (i + 1);
            shares[i].stride = stride, shares[i].sigma = sigmas[s];
            pthread_create(&threads[i], NULL, work, &shares[i]);
        }
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        for (int kind = 0; kind < KINDS; kind++) {
            int worse = shares[1].worst[kind] > shares[0].worst[kind];
            double worst = shares[worse].worst[kind];
            printf("sigma %-4g %-15s %.3f ulp at x = %.9g%s\n", sigmas[s], names[kind], worst,
                   shares[worse].where[kind], worst > limits[kind] ? ": exceeds the limit" : "");
            failed |= worst > limits[kind];
        }
        fflush(stdout);
    }
    return failed;
}
