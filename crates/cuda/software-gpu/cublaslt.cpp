// The stand-in for cuBLASLt: products by plain loops. An algorithm belongs to its descriptors and to the promised alignments;
// other uses are refused.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "half.h"
#include "software_gpu.h"

using namespace software_gpu;

enum { SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14 };
enum { COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_TF32 = 77 };
enum { EPILOGUE_DEFAULT = 1, EPILOGUE_BIAS = 4 };
#define API SOFTWARE_GPU_API int

struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t lead;
    int32_t batch = 1;
    int64_t offset = 0;
    uint64_t bytes() const {
        const uint64_t size = type == R_64F ? 8 : type == R_32F ? 4 : 2;
        return size * (uint64_t(offset) * uint64_t(batch - 1) + uint64_t(lead) * (columns - 1) + rows);
    }
};
struct Description {
    int compute, scale;
    int32_t transposed[2] = {0, 0};
    uint32_t epilogue = EPILOGUE_DEFAULT;
    uint64_t bias = 0;
};
struct Preference {
    uint64_t room = 0;
    uint32_t alignment[4] = {256, 256, 256, 256};
};
struct Algorithm {
    uint64_t marker, shapes, alignment, workspace, unused[4];
};
struct Heuristic {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

static const uint64_t MARKER = 0x616c676f72697468;

static void mix(uint64_t &hash, uint64_t value) { hash = (hash ^ value) * 0x100000001b3u + (hash >> 29); }
static uint64_t shapes(const Description &d, const Layout *const *layouts) {
    uint64_t hash = 7;
    for (uint64_t value : {uint64_t(d.compute), uint64_t(d.scale), uint64_t(d.transposed[0]), uint64_t(d.transposed[1]),
                           uint64_t(d.epilogue)})
        mix(hash, value);
    for (int i = 0; i < 4; ++i)
        for (uint64_t value : {uint64_t(layouts[i]->type), layouts[i]->rows, layouts[i]->columns, uint64_t(layouts[i]->lead),
                               uint64_t(layouts[i]->batch), uint64_t(layouts[i]->offset)})
            mix(hash, value);
    return hash;
}

// Existing descriptors and handles.
static std::atomic<int> alive{0}, handles{0};
template <class T> static int destroy(T *descriptor) {
    --alive;
    delete descriptor;
    return SUCCESS;
}

API cublasLtCreate(void **handle) {
    ++handles;
    *handle = std::malloc(1);
    return SUCCESS;
}
API cublasLtDestroy(void *handle) {
    if (--handles == 0 && alive > 0) fail("%d descriptors of cuBLASLt were never destroyed", alive.load());
    std::free(handle);
    return SUCCESS;
}
SOFTWARE_GPU_API size_t cublasLtGetVersion() { return 130000; }

API cublasLtMatrixLayoutCreate(Layout **made, int type, uint64_t rows, uint64_t columns, int64_t lead) {
    if (fails("cublasLtMatrixLayoutCreate")) return NOT_SUPPORTED;
    ++alive;
    *made = new Layout{type, rows, columns, lead};
    return SUCCESS;
}
API cublasLtMatrixLayoutDestroy(Layout *layout) { return destroy(layout); }
API cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value, size_t size) {
    if (attribute == 5 && size == 4) layout->batch = *static_cast<const int32_t *>(value);
    else if (attribute == 6 && size == 8) layout->offset = *static_cast<const int64_t *>(value);
    else return INVALID_VALUE;
    return SUCCESS;
}
API cublasLtMatmulDescCreate(Description **made, int compute, int scale) {
    ++alive;
    *made = new Description{compute, scale};
    return SUCCESS;
}
API cublasLtMatmulDescDestroy(Description *description) { return destroy(description); }
API cublasLtMatmulDescSetAttribute(Description *description, int attribute, const void *value, size_t size) {
    if ((attribute == 3 || attribute == 4) && size == 4)
        description->transposed[attribute - 3] = *static_cast<const int32_t *>(value);
    else if (attribute == 7 && size == 4) description->epilogue = *static_cast<const uint32_t *>(value);
    else if (attribute == 8 && size == 8) description->bias = *static_cast<const uint64_t *>(value);
    else return INVALID_VALUE;
    return SUCCESS;
}
API cublasLtMatmulPreferenceCreate(Preference **made) {
    ++alive;
    *made = new Preference;
    return SUCCESS;
}
API cublasLtMatmulPreferenceDestroy(Preference *preference) { return destroy(preference); }
API cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value, size_t size) {
    if (attribute == 1 && size == 8) preference->room = *static_cast<const uint64_t *>(value);
    // Of the reduction schemes only the one in the compute type: 1 adds in place, 4 adds in the result's type.
    else if (attribute == 3 && size == 4 && *static_cast<const uint32_t *>(value) == 2) return SUCCESS;
    else if (attribute >= 5 && attribute <= 8 && size == 4)
        preference->alignment[attribute - 5] = *static_cast<const uint32_t *>(value);
    else return INVALID_VALUE;
    return SUCCESS;
}

// The library's error for descriptors that do not match.
static int judge(const Description &d, const Layout *const *layouts) {
    const Layout &a = *layouts[0], &b = *layouts[1], &c = *layouts[2], &to = *layouts[3];
    const auto turned = [](const Layout &l, int32_t t) { return t ? std::make_pair(l.columns, l.rows) : std::make_pair(l.rows, l.columns); };
    const auto [m, k] = turned(a, d.transposed[0]);
    const auto [k2, n] = turned(b, d.transposed[1]);
    if (k != k2 || to.rows != m || to.columns != n || c.rows != m || c.columns != n) return INVALID_VALUE;
    for (int i = 0; i < 4; ++i)
        if (layouts[i]->lead < int64_t(layouts[i]->rows) || layouts[i]->batch != a.batch || !layouts[i]->rows || !layouts[i]->columns)
            return INVALID_VALUE;
    if (a.type != b.type || c.type != to.type) return NOT_SUPPORTED;
    if (a.type == R_64F) {
        if (to.type != R_64F || d.compute != COMPUTE_64F || d.scale != R_64F || d.epilogue != EPILOGUE_DEFAULT) return NOT_SUPPORTED;
    } else if (a.type == R_32F) {
        if (to.type != R_32F || (d.compute != COMPUTE_32F && d.compute != COMPUTE_TF32) || d.scale != R_32F) return NOT_SUPPORTED;
    } else if (a.type == R_16F || a.type == R_16BF) {
        if ((to.type != a.type && to.type != R_32F) || d.compute != COMPUTE_32F || d.scale != R_32F) return NOT_SUPPORTED;
    } else {
        return NOT_SUPPORTED;
    }
    return d.epilogue == EPILOGUE_DEFAULT || d.epilogue == EPILOGUE_BIAS ? SUCCESS : NOT_SUPPORTED;
}

static uint64_t packed(const uint32_t *alignment) {
    uint64_t all = 0;
    for (int i = 0; i < 4; ++i) all = all << 16 | alignment[i];
    return all;
}

API cublasLtMatmulAlgoGetHeuristic(void *, Description *d, Layout *a, Layout *b, Layout *c, Layout *to, Preference *preference,
                                   int asked, Heuristic *results, int *count) {
    const Layout *layouts[] = {a, b, c, to};
    const int verdict = judge(*d, layouts);
    *count = 0;
    if (verdict != SUCCESS) return verdict;
    if (asked < 1) return INVALID_VALUE;
    *count = 1;
    results[0] = {};
    results[0].workspace = preference->room < 4096 ? preference->room : 4096;
    results[0].algorithm = {MARKER, shapes(*d, layouts), packed(preference->alignment), results[0].workspace, {}};
    return SUCCESS;
}

template <class W>
static std::vector<W> widened(uint64_t pointer, int type, size_t count, bool tf32) {
    std::vector<W> values(count);
    const void *from = memory_at(pointer);
    for (size_t i = 0; i < count; ++i) {
        switch (type) {
        case R_64F: values[i] = W(static_cast<const double *>(from)[i]); break;
        case R_32F: values[i] = tf32 ? to_tf32(static_cast<const float *>(from)[i]) : W(static_cast<const float *>(from)[i]); break;
        case R_16BF: values[i] = from_bfloat(static_cast<const uint16_t *>(from)[i]); break;
        default: values[i] = from_half(static_cast<const uint16_t *>(from)[i]);
        }
    }
    return values;
}

template <class W>
static W read(const void *from, int type, size_t at) {
    switch (type) {
    case R_64F: return W(static_cast<const double *>(from)[at]);
    case R_32F: return W(static_cast<const float *>(from)[at]);
    case R_16BF: return from_bfloat(static_cast<const uint16_t *>(from)[at]);
    default: return from_half(static_cast<const uint16_t *>(from)[at]);
    }
}
template <class W>
static void write(void *to, int type, size_t at, W value) {
    switch (type) {
    case R_64F: static_cast<double *>(to)[at] = double(value); break;
    case R_32F: static_cast<float *>(to)[at] = float(value); break;
    case R_16BF: static_cast<uint16_t *>(to)[at] = to_bfloat(float(value)); break;
    default: static_cast<uint16_t *>(to)[at] = to_half(float(value));
    }
}

// Column-major.
template <class W>
static void multiply(const Description &d, const Layout &la, const Layout &lb, const Layout &lc, const Layout &lto, W alpha, W beta,
                     uint64_t a, uint64_t b, uint64_t c, uint64_t to) {
    const bool tf32 = d.compute == COMPUTE_TF32;
    const size_t m = lto.rows, n = lto.columns, k = d.transposed[0] ? la.rows : la.columns;
    const size_t size_a = la.bytes() / (la.type == R_64F ? 8 : la.type == R_32F ? 4 : 2);
    const size_t size_b = lb.bytes() / (lb.type == R_64F ? 8 : lb.type == R_32F ? 4 : 2);
    const auto all_a = widened<W>(a, la.type, size_a, tf32), all_b = widened<W>(b, lb.type, size_b, tf32);
    const void *bias = d.epilogue == EPILOGUE_BIAS ? memory_at(d.bias) : nullptr;
    void *out = memory_at(to);
    const void *old = beta != W(0) ? memory_at(c) : nullptr;
    std::vector<W> column(m);
    for (int32_t item = 0; item < lto.batch; ++item) {
        const W *pa = all_a.data() + item * la.offset, *pb = all_b.data() + item * lb.offset;
        for (size_t j = 0; j < n; ++j) {
            if (d.transposed[0]) {
                std::vector<W> right(k);
                for (size_t p = 0; p < k; ++p) right[p] = d.transposed[1] ? pb[j + p * lb.lead] : pb[p + j * lb.lead];
                for (size_t i = 0; i < m; ++i) {
                    const W *left = pa + i * la.lead;
                    W sum = 0;
                    for (size_t p = 0; p < k; ++p) sum += left[p] * right[p];
                    column[i] = sum;
                }
            } else {
                for (W &value : column) value = 0;
                for (size_t p = 0; p < k; ++p) {
                    const W right = d.transposed[1] ? pb[j + p * lb.lead] : pb[p + j * lb.lead];
                    const W *left = pa + p * la.lead;
                    for (size_t i = 0; i < m; ++i) column[i] += left[i] * right;
                }
            }
            for (size_t i = 0; i < m; ++i) {
                W value = alpha * column[i];
                if (old) value += beta * read<W>(old, lc.type, size_t(item) * size_t(lc.offset) + j * size_t(lc.lead) + i);
                if (bias) value += read<W>(bias, lto.type, i);
                write(out, lto.type, size_t(item) * size_t(lto.offset) + j * size_t(lto.lead) + i, value);
            }
        }
    }
}

API cublasLtMatmul(void *, Description *d, const void *alpha, const void *a, Layout *la, const void *b, Layout *lb, const void *beta,
                   const void *c, Layout *lc, void *to, Layout *lto, const Algorithm *algorithm, void *workspace, size_t room,
                   void *stream) {
    const Layout *layouts[] = {la, lb, lc, lto};
    if (const int verdict = judge(*d, layouts)) return verdict;
    if (!algorithm || algorithm->marker != MARKER || algorithm->shapes != shapes(*d, layouts))
        fail("cublasLtMatmul was given an algorithm of another product");
    const uint64_t pointers[] = {uint64_t(a), uint64_t(b), uint64_t(c), uint64_t(to)};
    for (int i = 0; i < 4; ++i) {
        const uint64_t promised = algorithm->alignment >> (48 - 16 * i) & 0xffff;
        if (pointers[i] % promised) fail("cublasLtMatmul was promised an alignment of %lu, and given %#lx", promised, pointers[i]);
    }
    if (room < algorithm->workspace) fail("cublasLtMatmul needs %lu bytes of workspace, and was given %zu", algorithm->workspace, room);
    const bool wide = d->scale == R_64F;
    const double scale[] = {wide ? *static_cast<const double *>(alpha) : *static_cast<const float *>(alpha),
                            wide ? *static_cast<const double *>(beta) : *static_cast<const float *>(beta)};
    std::vector<Access> accesses = {{pointers[0], la->bytes(), false}, {pointers[1], lb->bytes(), false},
                                    {pointers[3], lto->bytes(), true}, {uint64_t(workspace), room, true}};
    if (scale[1] != 0) accesses.push_back({pointers[2], lc->bytes(), false});
    if (d->epilogue == EPILOGUE_BIAS) accesses.push_back({d->bias, lto->rows * (lto->type == R_32F ? 4u : 2u), false});
    enqueue(stream, "cublasLtMatmul", accesses,
            [d = *d, la = *la, lb = *lb, lc = *lc, lto = *lto, scale0 = scale[0], scale1 = scale[1], wide, pointers0 = pointers[0],
             pointers1 = pointers[1], pointers2 = pointers[2], pointers3 = pointers[3]] {
                if (wide) multiply<double>(d, la, lb, lc, lto, scale0, scale1, pointers0, pointers1, pointers2, pointers3);
                else multiply<float>(d, la, lb, lc, lto, float(scale0), float(scale1), pointers0, pointers1, pointers2, pointers3);
            });
    return SUCCESS;
}
