/* Stacks that take turns on one thread. */
#ifndef ZPS_GPU_EMU_FIBER_HPP
#define ZPS_GPU_EMU_FIBER_HPP

#include <cstddef>

namespace zps_emu {

enum { STACK_BYTES = 128 << 10 };

struct Fiber {
  void *stack = nullptr; /* owned */
  size_t unused = 0;     /* bytes at the stack's top */
  void *saved = nullptr; /* the stack pointer at which it left off; with ucontext, its context */
  void *fake = nullptr;  /* the address sanitizer's */
};

/* The thread that the program runs on. */
extern Fiber main_fiber;

void fiber_create(Fiber *fiber);
void fiber_destroy(Fiber *fiber);
/* The next switch to it calls enter(), which must not return but switch away for good. */
void fiber_prepare(Fiber *fiber, void (*enter)());
/* `last`: `from` is not switched to again before it is prepared anew. */
void fiber_switch(Fiber *from, Fiber *to, bool last);
/* The first thing that enter() calls. */
void fiber_entered();

}  // namespace zps_emu

#endif
