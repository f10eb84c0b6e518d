// The exported table of kernels, and the macro that declares one.
#pragma once

#include <utility>

#include "running.h"

namespace phalanx_fibres {

static std::vector<PhalanxKernel> &table() {
    static std::vector<PhalanxKernel> kernels;
    return kernels;
}

template <class A>
constexpr unsigned char pointer() {
    return !std::is_pointer<A>::value ? 0 : std::is_const<typename std::remove_pointer<A>::type>::value ? 1 : 2;
}

template <class F>
struct Signature;
template <class... A>
struct Signature<void (*)(A...)> {
    static constexpr unsigned COUNT = sizeof...(A);
    static inline const unsigned SIZES[COUNT ? COUNT : 1] = {sizeof(A)...};
    static inline const unsigned char POINTERS[COUNT ? COUNT : 1] = {pointer<A>()...};
    template <size_t... I>
    static void call(void (*kernel)(A...), void **params, std::index_sequence<I...>) {
        kernel(*static_cast<A *>(params[I])...);
    }
    static void call(void (*kernel)(A...), void **params) { call(kernel, params, std::index_sequence_for<A...>()); }
};

struct Registered {
    template <class F>
    Registered(const char *name, void (*run)(const PhalanxLaunch *), unsigned max_threads, F) {
        table().push_back({name, run, max_threads, Signature<F>::COUNT, Signature<F>::SIZES, Signature<F>::POINTERS});
    }
};

} // namespace phalanx_fibres

// Declares a kernel, enters it in the table, and begins its definition.
#define KERNEL(name, threads, ...)                                                                            \
    static void name(__VA_ARGS__);                                                                            \
    static void name##_body(void **params) { phalanx_fibres::Signature<decltype(&name)>::call(&name, params); } \
    static void name##_run(const PhalanxLaunch *launch) {                                                     \
        phalanx_fibres::launch(launch, #name, threads, &name##_body);                                         \
    }                                                                                                         \
    static const phalanx_fibres::Registered name##_registered(#name, &name##_run, threads, &name);            \
    static void name(__VA_ARGS__)

extern "C" __attribute__((visibility("default"))) const PhalanxKernel *phalanx_fibres_kernels(unsigned *count) {
    *count = static_cast<unsigned>(phalanx_fibres::table().size());
    return phalanx_fibres::table().data();
}
// 0: threads and blocks start in ascending order; 1: in descending order; others: in random orders seeded by the number.
extern "C" __attribute__((visibility("default"))) void phalanx_fibres_order(unsigned seed) {
    phalanx_fibres::order = seed;
}
