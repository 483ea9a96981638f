/* From a call (loops.h) to spans (spans.h): where the rows, the channels and the threads begin and end, and
 * how the gradient of sigma is summed so that the threads leave no trace in it. */

#include "run.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "spans.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Elements for which a second thread pays: it costs about 2 us to call. */
#define GRAIN 16384
/* Elements whose parts of a sum are added in one go. */
#define BLOCK 4096
/* Below this, a run of equal sigmas is too short for a loop of its own ... */
#define SHORT_RUN 64
/* ... unless writing out the sigma of every element would take more than this many. */
#define LONGEST_PATTERN 65536

#define PI 3.141592653589793
#define INVERSE_PI 0x1.45f306dc9c883p-2
#define INVERSE_PI_LOW -0x1.6b01ec5417056p-56

static const iglu_loops *loops = &iglu_baseline_loops;
static const char *loops_name = "baseline";
static iglu_parallel_for *parallel_for;

/* -- the instruction set ------------------------------------------------------------------------------- */

int iglu_use(const char *name)
{
    if (strcmp(name, "baseline") == 0) {
        loops = &iglu_baseline_loops, loops_name = "baseline";
        return 0;
    }
#if defined(__x86_64__)
    /* clang's __builtin_cpu_supports does not know f16c in every version */
    unsigned a, b, c, d;
    int has_f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    int has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c;
    if (strcmp(name, "avx2") == 0 && has_avx2) {
        loops = &iglu_avx2_loops, loops_name = "avx2";
        return 0;
    }
    int has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (strcmp(name, "avx512") == 0 && has_avx512) {
        loops = &iglu_avx512_loops, loops_name = "avx512";
        return 0;
    }
#endif
    return -1;
}

void iglu_use_best(void)
{
    const char *limit = getenv("ATEN_CPU_CAPABILITY");
    int is_default = limit && strcmp(limit, "default") == 0, is_avx2 = limit && strcmp(limit, "avx2") == 0;
    if (!is_default && !is_avx2 && iglu_use("avx512") == 0)
        return;
    if (is_default || iglu_use("avx2") != 0)
        iglu_use("baseline");
}

const char *iglu_capability(void) { return loops_name; }

void iglu_set_parallel_for(iglu_parallel_for *function) { parallel_for = function; }

/* -- sigma --------------------------------------------------------------------------------------------- */

static void set_float(float *const to[], int64_t i, double sigma)
{
    double size = fabs(sigma), over_pi = size * INVERSE_PI, floor = INVERSE_PI / size;
    to[IGLU_SIGMA][i] = (float)size;
    to[IGLU_SIGMA_LOW][i] = (float)(size - (float)size);
    to[IGLU_OVER_PI][i] = (float)over_pi;
    to[IGLU_OVER_PI_LOW][i] = (float)(over_pi - (float)over_pi);
    to[IGLU_TIMES_PI][i] = (float)(size * PI);
    to[IGLU_INVERSE][i] = (float)(1 / size);
    to[IGLU_FLOOR][i] = (float)floor;
    to[IGLU_FLOOR_ERROR][i] = (float)(floor / (float)floor - 1);
    to[IGLU_LARGEST][i] = (float)fmin(0x1p126 / size, FLT_MAX);
    to[IGLU_SIGN][i] = sigma < 0 ? -1 : 1;
}

static void set_double(double *const to[], int64_t i, double sigma)
{
    double size = fabs(sigma), over_pi = size * INVERSE_PI, floor = INVERSE_PI / size;
    to[IGLU_SIGMA][i] = size;
    to[IGLU_SIGMA_LOW][i] = 0;
    to[IGLU_OVER_PI][i] = over_pi;
    to[IGLU_OVER_PI_LOW][i] = fma(size, INVERSE_PI, -over_pi) + size * INVERSE_PI_LOW;
    to[IGLU_TIMES_PI][i] = size * PI;
    to[IGLU_INVERSE][i] = 1 / size;
    to[IGLU_FLOOR][i] = floor;
    to[IGLU_FLOOR_ERROR][i] = PI * (INVERSE_PI_LOW - fma(floor, size, -INVERSE_PI));
    to[IGLU_LARGEST][i] = fmin(0x1p1022 / size, DBL_MAX);
    to[IGLU_SIGN][i] = sigma < 0 ? -1 : 1;
}

/* -- the job ------------------------------------------------------------------------------------------- */

typedef struct {
    iglu_call call;
    iglu_loop *const *loop; /* [0]: one sigma > 0, [1]: any sigmas */
    double (*sum)(const void *, int64_t);
    void (*add)(double *, const void *, int64_t);
    int64_t n;               /* elements */
    int64_t size, real_size; /* bytes of an element, and of one in the precision of the computation */
    int64_t longest;         /* span */

    /* There is a sigma for each run of `run` elements; or, with a period, for each element of a pattern. */
    int64_t run, period;
    char *constants[IGLU_CONSTANTS];

    /* The sum goes by units of `unit` elements.  A unit has one sum; or one for each run; or, where the
     * channels are innermost, one for each channel. */
    int64_t unit, units;
    double *sums;
    char grads[IGLU_CHUNK * sizeof(double)]; /* where the gradient is one value */
} job;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static void add_parts(const job *j, const char *parts, int64_t begin, int64_t length)
{
    const int64_t end = begin + length, channels = j->call.channels, inner = j->call.inner;
    if (channels == 0) {
        j->sums[begin / j->unit] += j->sum(parts, length);
    } else if (inner > 1) {
        for (int64_t at = begin, next; at < end; at = next) {
            next = smaller(end, (at / inner + 1) * inner);
            j->sums[at / inner] += j->sum(parts + (at - begin) * j->real_size, next - at);
        }
    } else {
        double *sums = j->sums + begin / j->unit * channels;
        for (int64_t at = begin, next; at < end; at = next) {
            next = smaller(end, (at / channels + 1) * channels);
            j->add(sums + at % channels, parts + (at - begin) * j->real_size, next - at);
        }
    }
}

/* One sigma <= 0 for the whole span, written out as the loop for any sigmas wants it. */
static void run_repeated(const job *j, iglu_span *span, int64_t length)
{
    char constants[IGLU_CONSTANTS][IGLU_CHUNK * sizeof(double)];
    for (int k = 0; k < IGLU_CONSTANTS; k++) {
        for (int64_t i = 0; i < length; i++)
            memcpy(constants[k] + i * j->real_size, span->constants[k], (size_t)j->real_size);
        span->constants[k] = constants[k];
    }
    j->loop[1](span, length);
}

static void run_elements(int64_t begin, int64_t end, void *context)
{
    const job *j = context;
    const iglu_call *c = &j->call;
    double parts[IGLU_CHUNK];
    for (int64_t at = begin, length; at < end; at += length) {
        const int64_t row = at / c->width, column = at % c->width;
        const int64_t sigma = j->period ? at % j->period : c->channels ? at / j->run % c->channels : 0;
        const int repeated = !j->period && !((c->channels ? c->sigmas[sigma] : c->sigma) > 0);
        length = smaller(smaller(end - at, c->width - column), repeated ? IGLU_CHUNK : j->longest);
        length = smaller(length, j->period ? j->period - sigma : j->run - at % j->run);
#define AT(pointer, step) ((pointer) ? (char *)(pointer) + (row * (step) + column) * j->size : NULL)
        iglu_span span = {
            .x = AT(c->x, c->x_step),
            .up = AT(c->up, c->up_step),
            .grad = c->grad_is_one_value ? j->grads : AT(c->grad, c->grad_step),
            .first = c->grad_x ? AT(c->grad_x, c->grad_x_step) : AT(c->y, c->y_step),
            .second = AT(c->grad_up, c->grad_up_step),
            .parts = parts,
        };
#undef AT
        for (int i = 0; i < IGLU_CONSTANTS; i++)
            span.constants[i] = j->constants[i] + sigma * j->real_size;
        if (repeated)
            run_repeated(j, &span, length);
        else
            j->loop[j->period != 0](&span, length);
        if (j->sums)
            add_parts(j, (const char *)parts, at, length);
    }
}

/* Each unit by itself, so that its spans begin at the same elements however the units fall to the threads. */
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
    const int64_t channels = j->call.channels, inner = j->call.inner;
    int64_t sums;
    if (channels == 0) {
        j->unit = BLOCK;
        sums = (j->n + BLOCK - 1) / BLOCK;
    } else if (inner > 1) {
        j->unit = inner * larger(1, BLOCK / inner);
        sums = j->n / inner;
    } else {
        j->unit = channels * larger(16, 4 * GRAIN / channels);
        sums = (j->n + j->unit - 1) / j->unit * channels;
    }
    j->units = (j->n + j->unit - 1) / j->unit;
    return j->sums = calloc((size_t)larger(sums, 1), sizeof(double));
}

static void combine_sums(const job *j)
{
    const int64_t channels = larger(j->call.channels, 1), inner = j->call.inner;
    const int64_t sums = j->call.channels && inner > 1 ? j->n / inner : j->units * channels;
    for (int64_t channel = 0; channel < channels; channel++)
        j->call.by_sigma[channel] = 0;
    for (int64_t i = 0; i < sums; i++)
        j->call.by_sigma[i % channels] += j->sums[i];
}

/* How many constants sigma makes, and how they are laid out. */
static int64_t plan_constants(job *j)
{
    const int64_t channels = j->call.channels, inner = j->call.inner;
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
    const iglu_call *c = &j->call;
    for (int i = 0; i < IGLU_CONSTANTS; i++)
        j->constants[i] = storage + i * count * j->real_size;
    for (int64_t i = 0; i < count; i++) {
        double sigma = c->channels == 0 ? c->sigma : c->sigmas[j->run ? i : i / c->inner % c->channels];
        if (j->real_size == sizeof(float))
            set_float((float *const *)(void *)j->constants, i, sigma);
        else
            set_double((double *const *)(void *)j->constants, i, sigma);
    }
}

int iglu_run(enum iglu_operation operation, enum iglu_family family, enum iglu_dtype dtype,
             const iglu_call *call)
{
    static const int64_t sizes[] = {[IGLU_F32] = 4, [IGLU_F64] = 8, [IGLU_BF16] = 2, [IGLU_F16] = 2};
    job j;
    memset(&j, 0, offsetof(job, grads));
    j.call = *call;
    j.n = call->rows * call->width;
    j.size = sizes[dtype];
    j.real_size = dtype == IGLU_F64 ? sizeof(double) : sizeof(float);
    j.longest = dtype == IGLU_F16 || call->by_sigma || call->grad_is_one_value ? IGLU_CHUNK : j.n;
    j.sum = loops->sum[dtype];
    j.add = loops->add[dtype];

    double few_constants[IGLU_CONSTANTS];
    const int64_t count = plan_constants(&j);
    const size_t bytes = (size_t)(IGLU_CONSTANTS * count * j.real_size);
    char *constants = count == 1 ? (char *)few_constants : malloc(bytes);
    if (constants == NULL)
        return -1;
    fill_constants(&j, count, constants);
    j.loop = loops->loop[dtype][family][operation][call->by_sigma != NULL];

    if (call->grad_is_one_value)
        for (int64_t i = 0; i < IGLU_CHUNK; i++)
            memcpy(j.grads + i * j.size, call->grad, (size_t)j.size);

    int result = 0;
    if (call->by_sigma == NULL) {
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
