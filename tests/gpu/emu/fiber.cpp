#include "tests/gpu/emu/fiber.hpp"

#include <cstdint>
#include <cstdlib>
#include <new>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define ZPS_EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ZPS_EMU_ASAN 1
#endif
#endif
#ifdef ZPS_EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__) || defined(__aarch64__)
#define ZPS_EMU_OWN_SWITCH 1
#else
#include <ucontext.h>
#endif

namespace zps_emu {

Fiber main_fiber;

/* Stacks lie a power of two apart. Their top frames would share one set of a processor's cache and push each other out,
 * so the frames of neighbours begin 0 to 15.5 KiB below the top. */
void fiber_create(Fiber *fiber) {
  static unsigned n;
  fiber->unused = n++ % 32 * 512;
  fiber->stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (fiber->stack == MAP_FAILED) throw std::bad_alloc();
}

/* A stack that was left for good still has the guards of the frames in it, from `low` on; below, functions have
 * returned and have taken theirs along. */
static void forget_frames(Fiber *fiber, void *low) {
#ifdef ZPS_EMU_ASAN
  char *const from = static_cast<char *>(low), *const end = static_cast<char *>(fiber->stack) + STACK_BYTES;
  ASAN_UNPOISON_MEMORY_REGION(from, end - from);
#else
  (void)fiber, (void)low;
#endif
}

#ifdef ZPS_EMU_OWN_SWITCH

/* The registers that a function must preserve, saved on the stack that is left. ucontext would make a system call per
 * switch. */
extern "C" void zps_emu_switch(void **saved_p, void *to);
__asm__(
    ".text\n"
    ".globl zps_emu_switch\n"
    ".hidden zps_emu_switch\n"
#ifdef __x86_64__
    ".type zps_emu_switch, @function\n"
    "zps_emu_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
#else
    ".type zps_emu_switch, %function\n"
    "zps_emu_switch:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n"
    "  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n"
    "  str x9, [x0]\n"
    "  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n"
    "  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n"
    "  ret\n"
#endif
    ".size zps_emu_switch, .-zps_emu_switch\n");

#ifdef __x86_64__
enum { SAVED_WORDS = 8, RETURN_WORD = 6 }; /* the last word: enter() finds the stack as after a call */
#else
enum { SAVED_WORDS = 20, RETURN_WORD = 11 };
#endif

void fiber_destroy(Fiber *fiber) {
  munmap(fiber->stack, STACK_BYTES);
}

void fiber_prepare(Fiber *fiber, void (*enter)()) {
  forget_frames(fiber, fiber->saved ? fiber->saved : fiber->stack); /* a new one lies where another may have lain */
  char *const end = static_cast<char *>(fiber->stack) + STACK_BYTES - fiber->unused;
  uintptr_t *const top = reinterpret_cast<uintptr_t *>(end) - SAVED_WORDS;
  for (unsigned i = 0; i < SAVED_WORDS; i++) top[i] = 0;
  top[RETURN_WORD] = reinterpret_cast<uintptr_t>(enter);
  fiber->saved = top;
  fiber->fake = nullptr;
}

static void change(Fiber *from, Fiber *to) {
  zps_emu_switch(&from->saved, to->saved);
}

#else

void fiber_destroy(Fiber *fiber) {
  munmap(fiber->stack, STACK_BYTES);
  delete static_cast<ucontext_t *>(fiber->saved);
}

static ucontext_t *context_of(Fiber *fiber) {
  if (!fiber->saved) fiber->saved = new ucontext_t;
  return static_cast<ucontext_t *>(fiber->saved);
}

void fiber_prepare(Fiber *fiber, void (*enter)()) {
  forget_frames(fiber, fiber->stack);
  ucontext_t *const context = context_of(fiber);
  getcontext(context);
  context->uc_stack.ss_sp = fiber->stack;
  context->uc_stack.ss_size = STACK_BYTES - fiber->unused;
  context->uc_link = nullptr;
  makecontext(context, enter, 0);
  fiber->fake = nullptr;
}

static void change(Fiber *from, Fiber *to) {
  swapcontext(context_of(from), context_of(to));
}

#endif

#ifdef ZPS_EMU_ASAN
static const void *main_stack;
static size_t main_stack_bytes;

void fiber_switch(Fiber *from, Fiber *to, bool last) {
  const void *const stack = to == &main_fiber ? main_stack : to->stack;
  __sanitizer_start_switch_fiber(last ? nullptr : &from->fake, stack,
                                 to == &main_fiber ? main_stack_bytes : static_cast<size_t>(STACK_BYTES));
  change(from, to);
  const void *bottom;
  size_t len_bytes;
  __sanitizer_finish_switch_fiber(from->fake, &bottom, &len_bytes);
}

void fiber_entered() {
  const void *bottom;
  size_t len_bytes;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &len_bytes);
  main_stack = bottom; /* fibers are entered from there alone */
  main_stack_bytes = len_bytes;
}
#else
void fiber_switch(Fiber *from, Fiber *to, bool) {
  change(from, to);
}

void fiber_entered() {}
#endif

}  // namespace zps_emu
