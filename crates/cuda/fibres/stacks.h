// A stack that can be left and entered again.
#pragma once

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

#include <cstddef>

namespace phalanx_fibres {

constexpr size_t STACK = 128 << 10;
struct Fibre;
static void fibre_main();

#if defined(__x86_64__)
extern "C" __attribute__((visibility("hidden"))) void phalanx_fibre_switch(void **save, void *load);
asm(R"(
.text
.hidden phalanx_fibre_switch
.globl phalanx_fibre_switch
.type phalanx_fibre_switch, @function
phalanx_fibre_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size phalanx_fibre_switch, .-phalanx_fibre_switch
)");
struct Stack {
    void *pointer = nullptr;
    void prepare(char *memory) {
        // A return address below an aligned one, as after a call.
        auto **top = reinterpret_cast<void **>(memory + STACK);
        *--top = nullptr;
        *--top = reinterpret_cast<void *>(&fibre_main);
        for (int i = 0; i < 6; ++i) *--top = nullptr;
        pointer = top;
    }
    static void change(Stack &from, Stack &to) { phalanx_fibre_switch(&from.pointer, to.pointer); }
};
#elif defined(__aarch64__)
extern "C" __attribute__((visibility("hidden"))) void phalanx_fibre_switch(void **save, void *load);
asm(R"(
.text
.hidden phalanx_fibre_switch
.globl phalanx_fibre_switch
.type phalanx_fibre_switch, %function
phalanx_fibre_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size phalanx_fibre_switch, .-phalanx_fibre_switch
)");
struct Stack {
    void *pointer = nullptr;
    void prepare(char *memory) {
        auto *frame = reinterpret_cast<void **>(memory + STACK) - 20;
        for (int i = 0; i < 20; ++i) frame[i] = nullptr;
        frame[11] = reinterpret_cast<void *>(&fibre_main);
        pointer = frame;
    }
    static void change(Stack &from, Stack &to) { phalanx_fibre_switch(&from.pointer, to.pointer); }
};
#else
struct Stack {
    ucontext_t context;
    void prepare(char *memory) {
        getcontext(&context);
        context.uc_stack.ss_sp = memory;
        context.uc_stack.ss_size = STACK;
        context.uc_link = nullptr;
        makecontext(&context, reinterpret_cast<void (*)()>(&fibre_main), 0);
    }
    static void change(Stack &from, Stack &to) { swapcontext(&from.context, &to.context); }
};
#endif

} // namespace phalanx_fibres
