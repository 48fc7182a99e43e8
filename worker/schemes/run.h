/*
 * Which instruction of a program is due: a pure state machine over what has happened, without network or bytes.
 *
 *   events: an instruction was carried out; a message was announced; the round failed
 *   answer: instructions that are due, in `ready`, to be carried out in any order
 *
 * The round is over when all instructions are carried out, or it failed.
 */
#ifndef ZPS_WORKER_SCHEMES_RUN_H
#define ZPS_WORKER_SCHEMES_RUN_H

#include "worker/schemes/program.h"

struct zps_run {
  const struct zps_program *program;
  uint32_t *n_missing; /* per instruction: streams it waits for; RECV: 1 until the message is announced */
  uint8_t *state;      /* per instruction */
  uint8_t *there;      /* per stream */
  uint32_t *first_reader, *next_reader; /* readers of a stream: entries of program->ins, chained */
  uint32_t *owner;                      /* per entry of program->ins: its instruction */
  uint32_t *ready;                      /* instructions in the order in which they became due; the first n_taken of
                                           n_ready have been given out */
  uint32_t *table;                      /* RECVs by peer and tag: open addressing */
  uint32_t table_size;
  uint32_t n_known, n_known_streams; /* what zps_run_grow() has seen of the program */
  uint32_t cap_instrs, cap_streams, cap_ins;
  uint32_t n_ready, n_taken, n_done, n_calls; /* n_calls: CALLs not carried out */
};

/* All zeros is a run that zps_run_reset() makes ready. */
void zps_run_fini(struct zps_run *run);
/* Before the first instruction. `program` is borrowed until the next reset. */
void zps_run_reset(struct zps_run *run, const struct zps_program *program);
/* The program was built, or has grown: what is due at once goes to `ready`. After a CALL, before its zps_run_done().
 * ZPS_ERR_INTERNAL: two RECVs of one message. */
zps_err_t zps_run_grow(struct zps_run *run) ZPS_MUSTCHECK;
/* The RECV for this message, or UINT32_MAX: none (yet): the message came before the program knew of it. */
uint32_t zps_run_find(const struct zps_run *run, uint32_t peer, uint32_t tag);
/* A message was announced for RECV `instr`: it is due. False: it was announced before, which no honest peer does. */
bool zps_run_announced(struct zps_run *run, uint32_t instr);
/* Carried out: its stream is there. */
void zps_run_done(struct zps_run *run, uint32_t instr);
/* The next instruction that is due, or UINT32_MAX. Each is given once, first those that were due first, and of those
 * that became due together first those that stand first in the program. */
uint32_t zps_run_take(struct zps_run *run);
bool zps_run_over(const struct zps_run *run);
/* For error texts: does an instruction still need a message of `peer`? */
bool zps_run_waits_for(const struct zps_run *run, uint32_t peer);
/* A message of `peer` that the program knows of has not been announced. */
bool zps_run_expects(const struct zps_run *run, uint32_t peer);
/* An instruction that reads `stream`, which one does. */
static inline uint32_t zps_run_reader(const struct zps_run *run, uint32_t stream) {
  return run->owner[run->first_reader[stream]];
}
/* `stream` goes to the result, and besides to other ranks alone: it is a part of the result that nothing is added to.
 */
bool zps_run_is_final(const struct zps_run *run, uint32_t stream);
/* `stream` is there and has no reader left that is not done, nor will the scheme add one: no CALL is left. */
bool zps_run_unused(const struct zps_run *run, uint32_t stream);

#endif
