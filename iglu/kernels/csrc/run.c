/* Splits a call (run.h) into spans (loops.h).  Dimensions are sorted and merged, so that most tensors are one long row;
 * spans end where a row, a channel or a thread's share ends.  The gradient of sigma is summed in an order that does not
 * depend on the number of threads. */

#include "run.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Minimum number of elements per thread: starting a thread takes about 2 us. */
#define GRAIN 16384
/* Elements per partial sum of the gradient of sigma. */
#define BLOCK 4096
/* A run of fewer elements with the same sigma is too short for a loop of its own ... */
#define SHORT_RUN 64
/* ... unless the array of one sigma per element would be longer than this. */
#define LONGEST_PATTERN 65536

#define PI 3.141592653589793
#define INVERSE_PI 0x1.45f306dc9c883p-2
#define INVERSE_PI_LOW -0x1.6b01ec5417056p-56

static iglu_parallel_for *parallel_for;

/* -- the instruction set -------------------------------------------------------------------------------------- */

static const struct instruction_set {
    const char *name;
    const iglu_loops *loops;
} instruction_sets[] = {
    {"baseline", &iglu_baseline_loops},
#if defined(__x86_64__)
    {"avx2", &iglu_avx2_loops},
    {"avx512", &iglu_avx512_loops},
#endif
};
static const struct instruction_set *used = instruction_sets;

/* The index of the best supported instruction set. */
static int best_index(void)
{
#if defined(__x86_64__)
    /* older versions of clang do not support __builtin_cpu_supports("f16c") */
    unsigned a, b, c, d;
    int has_f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") ? 2 : 1;
#endif
    return 0;
}

int iglu_use(const char *name)
{
    for (int i = best_index(); i >= 0; i--)
        if (strcmp(name, instruction_sets[i].name) == 0) {
            used = &instruction_sets[i];
            return 0;
        }
    return -1;
}

void iglu_use_best(void)
{
    const char *limit = getenv("ATEN_CPU_CAPABILITY");
    const int limits_avx2 = limit && strcmp(limit, "avx2") == 0, best = best_index();
    const int most = limit && strcmp(limit, "default") == 0 ? 0 : limits_avx2 ? 1 : 2;
    used = &instruction_sets[best < most ? best : most];
}

const char *iglu_capability(void) { return used->name; }

void iglu_set_parallel_for(iglu_parallel_for *function) { parallel_for = function; }

/* -- sigma ---------------------------------------------------------------------------------------------------- */

/* NaN if the value is NaN. */
static double at_most(double limit, double value) { return value > limit ? limit : value; }

/* An infinite sigma is the largest finite one with a floor of 0: ReLU.  Every NaN becomes the default one, whose lower
 * bits are 0: see rounded_bfloat16 in loops.c. */
static void set_constants(char *const to[], int64_t i, double sigma, int is_float)
{
    const double most = is_float ? FLT_MAX : DBL_MAX, size = isnan(sigma) ? NAN : at_most(most, fabs(sigma));
    const double over_pi = size * INVERSE_PI, floor = isinf(sigma) ? 0 : INVERSE_PI / size;
    const double float_error = (float)floor == 0 ? 0 : floor / (float)floor - 1;
    const double double_error = floor == 0 ? 0 : PI * (INVERSE_PI_LOW - fma(floor, size, -INVERSE_PI));
    const double constants[IGLU_CONSTANTS] = {
        [IGLU_sigma] = size,
        [IGLU_sigma_low] = is_float ? size - (float)size : 0,
        [IGLU_sigma_over_pi] = over_pi,
        [IGLU_sigma_over_pi_low] =
            is_float ? over_pi - (float)over_pi : fma(size, INVERSE_PI, -over_pi) + size * INVERSE_PI_LOW,
        [IGLU_quarter_pi_sigma] = size * (PI / 4),
        [IGLU_largest_x_half] = at_most(most, 0x1p20 / size),
        [IGLU_largest_y] = at_most(most, (is_float ? 0x1p30 : 0x1p60) / size),
        [IGLU_floor] = floor,
        [IGLU_floor_error] = is_float ? float_error : double_error,
        [IGLU_largest_x] = at_most(most, (is_float ? 0x1p126 : 0x1p1022) / size),
        [IGLU_sign] = sigma < 0 ? -1 : 1,
    };
    for (int k = 0; k < IGLU_CONSTANTS; k++)
        if (is_float)
            ((float *)(void *)to[k])[i] = (float)constants[k];
        else
            ((double *)(void *)to[k])[i] = constants[k];
}

/* -- the job -------------------------------------------------------------------------------------------------- */

typedef struct {
    const iglu_call *call;
    const iglu_loops *loops;
    int64_t size, real_size; /* bytes per element of the tensors, and in the precision of the computation */

    /* The elements in the order of the result's memory: rows of row_length elements, the rows in the order of the
     * remaining dimensions, outermost first.  Steps are in bytes. */
    int64_t n, row_length;
    int dimensions;
    int64_t sizes[IGLU_MAX_DIMENSIONS];
    int64_t steps[IGLU_OPERANDS][IGLU_MAX_DIMENSIONS];
    int64_t element_step[IGLU_OPERANDS]; /* from one element of a row to the next */
    int64_t longest_span;

    /* In this order the elements are (outer, channels, inner).  Either every `run` elements have the same sigma; or the
     * constants hold one per element, in a pattern that repeats after `period` elements. */
    int64_t channels, inner;
    int64_t run, period;
    char *constants[IGLU_CONSTANTS];

    /* The gradient of sigma is summed in units of `unit` elements.  There is a partial sum per `stretch` consecutive
     * elements of the same channel; or, where the channels are innermost and a stretch is 1, per unit and channel. */
    int64_t stretch, unit, units, sums_count;
    double *sums;
    int grad_is_one_value;
    double grads[IGLU_CHUNK]; /* this one value, repeated */
} job;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* -- the order of the elements -------------------------------------------------------------------------------- */

/* Whether dimension a of the call is outside b: by the strides of the result, then of the other tensors. */
static int is_outer(const iglu_call *c, int a, int b)
{
    static const int by[IGLU_OPERANDS] = {IGLU_FIRST, IGLU_X,     IGLU_UP,    IGLU_GRAD,
                                          IGLU_GG_X,  IGLU_GG_UP, IGLU_SECOND, IGLU_THIRD};
    for (int i = 0; i < IGLU_OPERANDS; i++)
        if (c->data[by[i]] && c->strides[by[i]][a] != c->strides[by[i]][b])
            return c->strides[by[i]][a] > c->strides[by[i]][b];
    return 0;
}

/* Whether the last dimension of the job and dimension d of the call, inside it, are one dimension for every tensor. */
static int can_merge(const job *j, int d)
{
    const iglu_call *c = j->call;
    for (int i = 0; i < IGLU_OPERANDS; i++)
        if (c->data[i] && j->steps[i][j->dimensions - 1] != c->sizes[d] * c->strides[i][d] * j->size)
            return 0;
    return 1;
}

static void sort_and_merge(job *j)
{
    const iglu_call *c = j->call;
    int order[IGLU_MAX_DIMENSIONS], count = 0;
    j->n = 1;
    for (int d = 0; d < c->dimensions; d++) {
        if (c->sizes[d] == 1)
            continue;
        int at = count++;
        for (; at > 0 && is_outer(c, d, order[at - 1]); at--)
            order[at] = order[at - 1];
        order[at] = d;
        j->n *= c->sizes[d];
    }
    j->inner = 1;
    for (int i = count - 1; c->sigmas && order[i] != c->channel_dimension; i--)
        j->inner *= c->sizes[order[i]];
    j->channels = c->sigmas ? c->sizes[c->channel_dimension] : 0;

    for (int i = 0; i < count; i++) {
        const int d = order[i], merges = j->dimensions > 0 && can_merge(j, d);
        const int to = merges ? j->dimensions - 1 : j->dimensions++;
        j->sizes[to] = merges ? j->sizes[to] * c->sizes[d] : c->sizes[d];
        for (int k = 0; k < IGLU_OPERANDS; k++)
            j->steps[k][to] = c->strides[k][d] * j->size;
    }
    const int last = j->dimensions - 1;
    j->row_length = last < 0 ? 1 : j->sizes[last];
    for (int k = 0; k < IGLU_OPERANDS; k++)
        j->element_step[k] = last < 0 ? j->size : j->steps[k][last];
}

static char *at_element(const job *j, int operand, int64_t row, int64_t column)
{
    char *place = j->call->data[operand];
    if (place == NULL)
        return NULL;
    place += column * j->element_step[operand];
    for (int d = j->dimensions - 2; d > 0; d--) {
        place += row % j->sizes[d] * j->steps[operand][d];
        row /= j->sizes[d];
    }
    return j->dimensions > 1 ? place + row * j->steps[operand][0] : place;
}

/* Gather strided elements into a contiguous span, and scatter them back. */
#define COPY(TYPE)                                                                                           \
    for (int64_t i = 0; i < n; i++)                                                                          \
        memcpy(to + i * to_step, from + i * from_step, sizeof(TYPE));
static void copy_elements(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t size, int64_t n)
{
    if (size == 2) {
        COPY(int16_t)
    } else if (size == 4) {
        COPY(int32_t)
    } else {
        COPY(int64_t)
    }
}

/* -- the gradient of sigma ------------------------------------------------------------------------------------ */

static void add_sigma_grads(const job *j, const char *sigma_grads, int64_t begin, int64_t length)
{
    const int64_t end = begin + length, per = j->stretch > 1 ? j->stretch : j->channels;
    double *sums = j->sums + begin / j->unit * j->channels;
    for (int64_t at = begin, next; at < end; at = next) {
        next = smaller(end, (at / per + 1) * per);
        if (j->stretch > 1)
            j->sums[at / per] += j->loops->sum[j->call->dtype](sigma_grads + (at - begin) * j->real_size, next - at);
        else
            j->loops->add[j->call->dtype](sums + at % per, sigma_grads + (at - begin) * j->real_size, next - at);
    }
}

/* -- the elements --------------------------------------------------------------------------------------------- */

/* One sigma <= 0 for the complete span: the loop for signed sigmas takes one per element. */
static void run_repeated(const job *j, iglu_span *span, int64_t length)
{
    char constants[IGLU_CONSTANTS][IGLU_CHUNK * sizeof(double)];
    for (int k = 0; k < IGLU_CONSTANTS; k++) {
        for (int64_t i = 0; i < length; i++)
            memcpy(constants[k] + i * j->real_size, span->constants[k], (size_t)j->real_size);
        span->constants[k] = constants[k];
    }
    span->signed_sigma = 1;
    j->loops->run(span, length);
}

static void run_elements(int64_t begin, int64_t end, void *context)
{
    const job *j = context;
    const iglu_call *c = j->call;
    double sigma_grads[IGLU_CHUNK], staged[IGLU_OPERANDS][IGLU_CHUNK];
    for (int64_t at = begin, length; at < end; at += length) {
        const int64_t row = at / j->row_length, column = at % j->row_length;
        const int64_t sigma = j->period ? at % j->period : j->channels ? at / j->run % j->channels : 0;
        const int repeated = !j->period && !((c->sigmas ? c->sigmas[sigma] : c->sigma) > 0);
        length = smaller(smaller(end - at, j->row_length - column), repeated ? IGLU_CHUNK : j->longest_span);
        length = smaller(length, j->period ? j->period - sigma : j->run - at % j->run);
        iglu_span span = {.operation = c->operation,
                          .family = c->family,
                          .dtype = c->dtype,
                          .sigma_grads = j->sums ? sigma_grads : NULL,
                          .signed_sigma = j->period != 0};
        char *place[IGLU_OPERANDS];
        for (int k = 0; k < IGLU_OPERANDS; k++) {
            place[k] = at_element(j, k, row, column);
            span.data[k] = place[k] && j->element_step[k] != j->size ? (char *)staged[k] : place[k];
        }
        if (j->grad_is_one_value)
            span.data[IGLU_GRAD] = place[IGLU_GRAD] = (char *)j->grads;
        for (int k = IGLU_X; k <= IGLU_GG_UP; k++)
            if (span.data[k] != place[k])
                copy_elements(span.data[k], j->size, place[k], j->element_step[k], j->size, length);
        for (int i = 0; i < IGLU_CONSTANTS; i++)
            span.constants[i] = j->constants[i] + sigma * j->real_size;
        if (repeated)
            run_repeated(j, &span, length);
        else
            j->loops->run(&span, length);
        for (int k = IGLU_FIRST; k <= IGLU_THIRD; k++)
            if (span.data[k] != place[k])
                copy_elements(place[k], j->element_step[k], span.data[k], j->size, j->size, length);
        if (j->sums)
            add_sigma_grads(j, (const char *)sigma_grads, at, length);
    }
}

/* Runs unit by unit, so that spans begin at the same elements for any number of threads. */
static void run_units(int64_t begin, int64_t end, void *context)
{
    const job *j = context;
    for (int64_t unit = begin; unit < end; unit++)
        run_elements(unit * j->unit, smaller((unit + 1) * j->unit, j->n), context);
}

static void in_parallel(int64_t count, int64_t grain, void (*body)(int64_t, int64_t, void *), job *j)
{
    if (parallel_for == NULL || count <= grain)
        body(0, count, j);
    else
        parallel_for(0, count, grain, body, j);
}

static void *prepare_sums(job *j)
{
    const int64_t channels = j->channels;
    j->stretch = channels ? j->inner : BLOCK;
    j->unit = j->stretch > 1 ? j->stretch * larger(1, BLOCK / j->stretch) : channels * larger(16, 4 * GRAIN / channels);
    j->units = (j->n + j->unit - 1) / j->unit;
    j->sums_count = j->stretch > 1 ? (j->n + j->stretch - 1) / j->stretch : j->units * channels;
    return j->sums = calloc((size_t)larger(j->sums_count, 1), sizeof(double));
}

static void combine_sums(const job *j)
{
    const int64_t channels = larger(j->channels, 1);
    memset(j->call->grad_sigma, 0, (size_t)channels * sizeof(double));
    for (int64_t i = 0; i < j->sums_count; i++)
        j->call->grad_sigma[i % channels] += j->sums[i];
}

/* Choose the layout of the constants; returns their number. */
static int64_t plan_constants(job *j)
{
    const int64_t channels = j->channels, inner = j->inner;
    if (channels == 0) {
        j->run = larger(j->n, 1);
        return 1;
    }
    const int64_t cycle = channels * inner;
    if (inner > 1 && (inner >= SHORT_RUN || cycle > LONGEST_PATTERN)) {
        j->run = inner;
        return channels;
    }
    return j->period = cycle * larger(1, IGLU_CHUNK / cycle);
}

static void fill_constants(job *j, int64_t count, char *storage)
{
    const iglu_call *c = j->call;
    for (int i = 0; i < IGLU_CONSTANTS; i++)
        j->constants[i] = storage + i * count * j->real_size;
    for (int64_t i = 0; i < count; i++) {
        double sigma = j->channels == 0 ? c->sigma : c->sigmas[j->run ? i : i / j->inner % j->channels];
        set_constants(j->constants, i, sigma, j->real_size == sizeof(float));
    }
}

int iglu_run(const iglu_call *call)
{
    job j;
    memset(&j, 0, offsetof(job, grads));
    j.call = call;
    j.loops = used->loops;
    j.size = iglu_bytes(call->dtype);
    j.real_size = call->dtype == IGLU_F64 ? sizeof(double) : sizeof(float);
    sort_and_merge(&j);
    j.grad_is_one_value = call->data[IGLU_GRAD] != NULL && j.n > 1;
    for (int d = 0; d < j.dimensions; d++)
        j.grad_is_one_value &= j.steps[IGLU_GRAD][d] == 0;
    int in_chunks = call->dtype == IGLU_F16 || call->grad_sigma || j.grad_is_one_value;
    for (int k = 0; k < IGLU_OPERANDS; k++)
        in_chunks |= call->data[k] && j.element_step[k] != j.size;
    j.longest_span = in_chunks ? IGLU_CHUNK : j.n;

    double few_constants[IGLU_CONSTANTS];
    const int64_t count = plan_constants(&j);
    const size_t bytes = (size_t)(IGLU_CONSTANTS * count * j.real_size);
    char *constants = count == 1 ? (char *)few_constants : malloc(bytes);
    if (constants == NULL)
        return -1;
    fill_constants(&j, count, constants);

    if (j.grad_is_one_value)
        copy_elements((char *)j.grads, j.size, call->data[IGLU_GRAD], 0, j.size, IGLU_CHUNK);

    int result = 0;
    if (call->grad_sigma == NULL) {
        in_parallel(j.n, GRAIN, run_elements, &j);
    } else if (prepare_sums(&j)) {
        in_parallel(j.units, larger(1, GRAIN / j.unit), run_units, &j);
        combine_sums(&j);
        free(j.sums);
    } else {
        result = -1;
    }
    if (constants != (char *)few_constants)
        free(constants);
    return result;
}
