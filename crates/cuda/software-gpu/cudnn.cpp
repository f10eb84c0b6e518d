// The stand-in for cuDNN: convolutions and their gradients by plain loops. Descriptors that do not match, algorithms that were
// not offered for a shape, and too little workspace are refused.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "half.h"
#include "software_gpu.h"

using namespace software_gpu;

enum { SUCCESS = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000 };
enum { FLOAT = 0, DOUBLE = 1, HALF = 2, BFLOAT16 = 9 };
enum { DEFAULT_MATH = 0, TENSOR_OP_MATH = 1, FMA_MATH = 3 };
#define API SOFTWARE_GPU_API int

struct Handle {
    void *stream;
};
struct Tensor {
    int type, sizes[4], strides[4];
    size_t element() const { return type == DOUBLE ? 8 : type == FLOAT ? 4 : 2; }
    size_t count() const { return size_t(sizes[0]) * sizes[1] * sizes[2] * sizes[3]; }
    size_t bytes() const { return count() * element(); }
    size_t at(int n, int c, int h, int w) const {
        return size_t(n) * strides[0] + size_t(c) * strides[1] + size_t(h) * strides[2] + size_t(w) * strides[3];
    }
};
struct Convolution {
    int pad[2], step[2], between[2], mode, compute, math = DEFAULT_MATH, groups = 1;
};
struct Performance {
    int algorithm, status;
    float time;
    size_t memory;
    int determinism, math, reserved[3];
};

static bool known(int type) { return type == FLOAT || type == DOUBLE || type == HALF || type == BFLOAT16; }

SOFTWARE_GPU_API size_t cudnnGetVersion() { return 91002; }
SOFTWARE_GPU_API const char *cudnnGetErrorString(int) { return "an error of the software GPU"; }
// Existing descriptors and handles.
static std::atomic<int> alive{0}, handles{0};
API cudnnCreate(Handle **made) {
    ++handles;
    *made = new Handle{nullptr};
    return SUCCESS;
}
API cudnnDestroy(Handle *handle) {
    if (--handles == 0 && alive > 0) fail("%d descriptors of cuDNN were never destroyed", alive.load());
    delete handle;
    return SUCCESS;
}
API cudnnSetStream(Handle *handle, void *stream) { handle->stream = stream; return SUCCESS; }
API cudnnCreateTensorDescriptor(Tensor **made) {
    ++alive;
    *made = new Tensor{-1, {}, {}};
    return SUCCESS;
}
API cudnnDestroyTensorDescriptor(Tensor *tensor) {
    --alive;
    delete tensor;
    return SUCCESS;
}
API cudnnSetTensor4dDescriptorEx(Tensor *tensor, int type, int n, int c, int h, int w, int sn, int sc, int sh, int sw) {
    if (!known(type) || n < 1 || c < 1 || h < 1 || w < 1) return BAD_PARAM;
    *tensor = {type, {n, c, h, w}, {sn, sc, sh, sw}};
    const bool first = sw == 1 && sh == w && sc == h * w && sn == c * h * w;
    const bool last = sc == 1 && sw == c && sh == w * c && sn == h * w * c;
    return first || last ? SUCCESS : NOT_SUPPORTED;
}
// A filter is a tensor with the strides of its format.
API cudnnCreateFilterDescriptor(Tensor **made) {
    return fails("cudnnCreateFilterDescriptor") ? NOT_SUPPORTED : cudnnCreateTensorDescriptor(made);
}
API cudnnDestroyFilterDescriptor(Tensor *filter) { return cudnnDestroyTensorDescriptor(filter); }
API cudnnSetFilter4dDescriptor(Tensor *filter, int type, int format, int k, int c, int h, int w) {
    if (!known(type) || k < 1 || c < 1 || h < 1 || w < 1) return BAD_PARAM;
    if (format == 0) *filter = {type, {k, c, h, w}, {c * h * w, h * w, w, 1}};
    else if (format == 1) *filter = {type, {k, c, h, w}, {h * w * c, 1, w * c, c}};
    else return NOT_SUPPORTED;
    return SUCCESS;
}
API cudnnCreateConvolutionDescriptor(Convolution **made) {
    ++alive;
    *made = new Convolution{};
    return SUCCESS;
}
API cudnnDestroyConvolutionDescriptor(Convolution *convolution) {
    --alive;
    delete convolution;
    return SUCCESS;
}
API cudnnSetConvolution2dDescriptor(Convolution *to, int ph, int pw, int sh, int sw, int dh, int dw, int mode, int compute) {
    if (ph < 0 || pw < 0 || sh < 1 || sw < 1 || dh < 1 || dw < 1) return BAD_PARAM;
    *to = {{ph, pw}, {sh, sw}, {dh, dw}, mode, compute};
    return SUCCESS;
}
API cudnnSetConvolutionMathType(Convolution *to, int math) { to->math = math; return SUCCESS; }
API cudnnSetConvolutionGroupCount(Convolution *to, int groups) {
    to->groups = groups;
    return groups > 0 ? SUCCESS : BAD_PARAM;
}

static int judge(const Tensor &x, const Tensor &w, const Tensor &y, const Convolution &c) {
    if (x.type != w.type || x.type != y.type) return NOT_SUPPORTED;
    if (c.compute != (x.type == DOUBLE ? DOUBLE : FLOAT) || c.mode != 1) return NOT_SUPPORTED;
    if (x.sizes[1] % c.groups || w.sizes[0] % c.groups || w.sizes[1] != x.sizes[1] / c.groups) return BAD_PARAM;
    if (y.sizes[0] != x.sizes[0] || y.sizes[1] != w.sizes[0]) return BAD_PARAM;
    for (int i = 0; i < 2; ++i) {
        const int room = x.sizes[2 + i] + 2 * c.pad[i] - c.between[i] * (w.sizes[2 + i] - 1) - 1;
        if (room < 0 || y.sizes[2 + i] != room / c.step[i] + 1) return BAD_PARAM;
    }
    // Images and weights must have the same layout, unless there is one channel.
    const bool x_last = x.strides[1] == 1 && x.sizes[1] > 1, y_last = y.strides[1] == 1 && y.sizes[1] > 1;
    const bool x_first = x.strides[3] == 1 && x.sizes[3] > 1, y_first = y.strides[3] == 1 && y.sizes[3] > 1;
    return (x_last && y_first) || (x_first && y_last) ? NOT_SUPPORTED : SUCCESS;
}

// The fastest algorithm is not deterministic, and takes much memory; the second is deterministic and takes little. With the
// default math type it does not round to TF32, but takes more memory than it was queried with.
enum { WILD = 0, REPEATING = 1 };
static size_t need(const Tensor &x, int algorithm, int math) {
    return algorithm == WILD ? size_t(1) << 20 : 256 + x.bytes() % 4096 + (math == DEFAULT_MATH ? 512 : 0);
}
static int offer(const Tensor &x, const Tensor &w, const Tensor &y, const Convolution &c, int asked, int *count, Performance *answers) {
    if (const int verdict = judge(x, w, y, c)) return verdict;
    *count = asked < 2 ? asked : 2;
    for (int i = 0; i < *count; ++i) {
        const int math = i == REPEATING && c.math == TENSOR_OP_MATH ? int(DEFAULT_MATH) : c.math;
        answers[i] = {i, SUCCESS, 0.1f + float(i), need(x, i, c.math), i == REPEATING, math, {}};
    }
    return SUCCESS;
}
API cudnnGetConvolutionForwardWorkspaceSize(Handle *, Tensor *x, Tensor *, Convolution *c, Tensor *, int algorithm, size_t *bytes) {
    *bytes = need(*x, algorithm, c->math);
    return SUCCESS;
}
API cudnnGetConvolutionBackwardDataWorkspaceSize(Handle *, Tensor *, Tensor *, Convolution *c, Tensor *dx, int algorithm, size_t *bytes) {
    *bytes = need(*dx, algorithm, c->math);
    return SUCCESS;
}
API cudnnGetConvolutionBackwardFilterWorkspaceSize(Handle *, Tensor *x, Tensor *, Convolution *c, Tensor *, int algorithm, size_t *bytes) {
    *bytes = need(*x, algorithm, c->math);
    return SUCCESS;
}
API cudnnGetConvolutionForwardAlgorithm_v7(Handle *, Tensor *x, Tensor *w, Convolution *c, Tensor *y, int asked, int *count, Performance *to) {
    return offer(*x, *w, *y, *c, asked, count, to);
}
API cudnnGetConvolutionBackwardDataAlgorithm_v7(Handle *, Tensor *w, Tensor *dy, Convolution *c, Tensor *dx, int asked, int *count, Performance *to) {
    return offer(*dx, *w, *dy, *c, asked, count, to);
}
API cudnnGetConvolutionBackwardFilterAlgorithm_v7(Handle *, Tensor *x, Tensor *dy, Convolution *c, Tensor *dw, int asked, int *count, Performance *to) {
    return offer(*x, *dw, *dy, *c, asked, count, to);
}

// ---- the loops

template <class W>
static std::vector<W> widened(const void *pointer, const Tensor &t, bool tf32) {
    const void *from = at<char>(pointer);
    std::vector<W> values(t.count());
    for (size_t i = 0; i < values.size(); ++i) {
        switch (t.type) {
        case DOUBLE: values[i] = W(static_cast<const double *>(from)[i]); break;
        case FLOAT: values[i] = tf32 ? to_tf32(static_cast<const float *>(from)[i]) : W(static_cast<const float *>(from)[i]); break;
        case HALF: values[i] = from_half(static_cast<const uint16_t *>(from)[i]); break;
        default: values[i] = from_bfloat(static_cast<const uint16_t *>(from)[i]);
        }
    }
    return values;
}
template <class W>
static void narrowed(const std::vector<W> &values, void *pointer, const Tensor &t, W alpha, W beta) {
    void *to = at<char>(pointer);
    const std::vector<W> old = beta != W(0) ? widened<W>(pointer, t, false) : std::vector<W>();
    for (size_t i = 0; i < values.size(); ++i) {
        const W value = alpha * values[i] + (beta != W(0) ? beta * old[i] : W(0));
        switch (t.type) {
        case DOUBLE: static_cast<double *>(to)[i] = double(value); break;
        case FLOAT: static_cast<float *>(to)[i] = float(value); break;
        case HALF: static_cast<uint16_t *>(to)[i] = to_half(float(value)); break;
        default: static_cast<uint16_t *>(to)[i] = to_bfloat(float(value));
        }
    }
}

// A row of products: elements from `x` and `y` on, so far apart, with one tap of the filter.
struct Row {
    size_t x, x_step, tap, y, y_step;
    int count;
};

// Calls body(row) for every row of products. The products of an element are in the same order for any layout.
template <class Body>
static void products(const Tensor &x, const Tensor &w, const Tensor &y, const Convolution &c, Body body) {
    const int in = w.sizes[1], out = w.sizes[0] / c.groups, step = c.step[1];
    for (int n = 0; n < x.sizes[0]; ++n)
        for (int o = 0; o < w.sizes[0]; ++o)
            for (int i = 0; i < in; ++i) {
                const int channel = o / out * in + i;
                for (int kh = 0; kh < w.sizes[2]; ++kh)
                    for (int kw = 0; kw < w.sizes[3]; ++kw) {
                        const size_t tap = w.at(o, i, kh, kw);
                        // Output columns whose input column lies in the image.
                        const int shift = kw * c.between[1] - c.pad[1];
                        const int first = shift < 0 ? (-shift + step - 1) / step : 0;
                        const int last = x.sizes[3] - 1 - shift;
                        const int end = last < 0 ? 0 : std::min(y.sizes[3], last / step + 1);
                        if (first >= end) continue;
                        for (int yh = 0; yh < y.sizes[2]; ++yh) {
                            const int h = yh * c.step[0] - c.pad[0] + kh * c.between[0];
                            if (h < 0 || h >= x.sizes[2]) continue;
                            const size_t from = x.at(n, channel, h, first * step + shift), to = y.at(n, o, yh, first);
                            body(Row{from, size_t(step) * x.strides[3], tap, to, size_t(y.strides[3]), end - first});
                        }
                    }
            }
}

// Adds factor times `from` to `to`. Apart from each other by one, the compiler computes several at a time.
template <class W>
static void add_row(W *__restrict to, size_t to_step, const W *__restrict from, size_t from_step, W factor, int count) {
    if (to_step == 1 && from_step == 1)
        for (int k = 0; k < count; ++k) to[k] += from[k] * factor;
    else
        for (int k = 0; k < count; ++k) to[k * to_step] += from[k * from_step] * factor;
}

enum Pass { FORWARD, DATA, FILTER };
template <class W>
static void compute(Pass pass, const Tensor &x, const Tensor &w, const Tensor &y, const Convolution &c, const void *px, const void *pw,
                    const void *py, W alpha, W beta) {
    const bool tf32 = x.type == FLOAT && c.math != FMA_MATH;
    if (pass == FORWARD) {
        const auto vx = widened<W>(px, x, tf32), vw = widened<W>(pw, w, tf32);
        std::vector<W> to(y.count());
        products(x, w, y, c, [&](const Row &r) { add_row(&to[r.y], r.y_step, &vx[r.x], r.x_step, vw[r.tap], r.count); });
        narrowed(to, const_cast<void *>(py), y, alpha, beta);
    } else if (pass == DATA) {
        const auto vy = widened<W>(py, y, tf32), vw = widened<W>(pw, w, tf32);
        std::vector<W> to(x.count());
        products(x, w, y, c, [&](const Row &r) { add_row(&to[r.x], r.x_step, &vy[r.y], r.y_step, vw[r.tap], r.count); });
        narrowed(to, const_cast<void *>(px), x, alpha, beta);
    } else {
        const auto vx = widened<W>(px, x, tf32), vy = widened<W>(py, y, tf32);
        std::vector<W> to(w.count());
        products(x, w, y, c, [&](const Row &r) {
            W sum = to[r.tap];
            for (int k = 0; k < r.count; ++k) sum += vx[r.x + k * r.x_step] * vy[r.y + k * r.y_step];
            to[r.tap] = sum;
        });
        narrowed(to, const_cast<void *>(pw), w, alpha, beta);
    }
}

static int run(Pass pass, const char *name, Handle *handle, const void *alpha, const Tensor &x, const void *px, const Tensor &w,
               const void *pw, const Tensor &y, const void *py, const Convolution &c, int algorithm, void *room, size_t bytes,
               const void *beta) {
    if (const int verdict = judge(x, w, y, c)) return verdict;
    if (algorithm != WILD && algorithm != REPEATING) fail("%s was given an algorithm that was not offered", name);
    if (bytes < need(x, algorithm, c.math)) fail("%s needs %zu bytes of workspace, and was given %zu", name, need(x, algorithm, c.math), bytes);
    const bool wide = x.type == DOUBLE;
    const double a = wide ? *static_cast<const double *>(alpha) : *static_cast<const float *>(alpha);
    const double b = wide ? *static_cast<const double *>(beta) : *static_cast<const float *>(beta);
    const auto access = [](const void *pointer, const Tensor &t, bool write) { return Access{uint64_t(pointer), t.bytes(), write}; };
    const size_t needed = need(x, algorithm, c.math);
    enqueue(handle->stream, name,
            {access(px, x, pass == DATA), access(pw, w, pass == FILTER), access(py, y, pass == FORWARD), {uint64_t(room), bytes, true}},
            [=, x = x, w = w, y = y, c = c] {
                std::memset(at<char>(room), 0xff, needed);
                if (wide) compute<double>(pass, x, w, y, c, px, pw, py, a, b);
                else compute<float>(pass, x, w, y, c, px, pw, py, float(a), float(b));
            });
    return SUCCESS;
}

API cudnnConvolutionForward(Handle *handle, const void *alpha, Tensor *x, const void *px, Tensor *w, const void *pw, Convolution *c,
                            int algorithm, void *room, size_t bytes, const void *beta, Tensor *y, void *py) {
    return run(FORWARD, "cudnnConvolutionForward", handle, alpha, *x, px, *w, pw, *y, py, *c, algorithm, room, bytes, beta);
}
API cudnnConvolutionBackwardData(Handle *handle, const void *alpha, Tensor *w, const void *pw, Tensor *y, const void *py, Convolution *c,
                                 int algorithm, void *room, size_t bytes, const void *beta, Tensor *x, void *px) {
    return run(DATA, "cudnnConvolutionBackwardData", handle, alpha, *x, px, *w, pw, *y, py, *c, algorithm, room, bytes, beta);
}
API cudnnConvolutionBackwardFilter(Handle *handle, const void *alpha, Tensor *x, const void *px, Tensor *y, const void *py, Convolution *c,
                                   int algorithm, void *room, size_t bytes, const void *beta, Tensor *w, void *pw) {
    return run(FILTER, "cudnnConvolutionBackwardFilter", handle, alpha, *x, px, *w, pw, *y, py, *c, algorithm, room, bytes, beta);
}

// Timing runs the algorithms: they write a result that callers may not rely on.
static int attempt(Pass pass, Handle *handle, const Tensor &x, const void *px, const Tensor &w, const void *pw, const Tensor &y,
                   const void *py, const Convolution &c, int asked, int *count, Performance *answers, void *room, size_t bytes) {
    if (const int verdict = offer(x, w, y, c, asked, count, answers)) return verdict;
    const double one[] = {1, 0};
    const float single[] = {1, 0};
    const void *scales[] = {x.type == DOUBLE ? (const void *)&one[0] : &single[0], x.type == DOUBLE ? (const void *)&one[1] : &single[1]};
    for (int i = 0; i < *count; ++i) {
        if (need(x, i, c.math) > bytes) {
            answers[i].status = NOT_SUPPORTED;
            continue;
        }
        run(pass, "a timed algorithm", handle, scales[0], x, px, w, pw, y, py, c, i, room, bytes, scales[1]);
    }
    return SUCCESS;
}
API cudnnFindConvolutionForwardAlgorithmEx(Handle *handle, Tensor *x, const void *px, Tensor *w, const void *pw, Convolution *c, Tensor *y,
                                           void *py, int asked, int *count, Performance *to, void *room, size_t bytes) {
    return attempt(FORWARD, handle, *x, px, *w, pw, *y, py, *c, asked, count, to, room, bytes);
}
API cudnnFindConvolutionBackwardDataAlgorithmEx(Handle *handle, Tensor *w, const void *pw, Tensor *y, const void *py, Convolution *c,
                                                Tensor *x, void *px, int asked, int *count, Performance *to, void *room, size_t bytes) {
    return attempt(DATA, handle, *x, px, *w, pw, *y, py, *c, asked, count, to, room, bytes);
}
API cudnnFindConvolutionBackwardFilterAlgorithmEx(Handle *handle, Tensor *x, const void *px, Tensor *y, const void *py, Convolution *c,
                                                  Tensor *w, void *pw, int asked, int *count, Performance *to, void *room, size_t bytes) {
    return attempt(FILTER, handle, *x, px, *w, pw, *y, py, *c, asked, count, to, room, bytes);
}
