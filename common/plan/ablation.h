/* Parts of a scheme's paper that a tensor can do without, so that figures can show what each of them is good for. */
#ifndef ZPS_PLAN_ABLATION_H
#define ZPS_PLAN_ABLATION_H

#include "common/plan/schemes.h"

/*
 * Each by its bit, its name and the scheme that has it. Results are the same without the first four.
 *
 * Without rotation every rank sends to, and reads from, rank 0 first, then 1 and so on. Without bucketing a region
 * travels as one message, whose sum begins when all have come. Without repartition regions are even ranges of rows
 * [figure 7a]. Without balancing shares are gathered as uneven as they are [figure 7b]. Without steering thresholds
 * stay until the next exact ones, as in the paper; else they follow their counts [figures 4, 6]. Without correction the
 * normal threshold of gaussiank stands, however few rows it selects [figures 4, 6].
 */
#define ZPS_PLAN_PART_LIST(PART)              \
  PART(ROTATION, 0, "rotation", OKTOPK)       \
  PART(BUCKETING, 1, "bucketing", OKTOPK)     \
  PART(REPARTITION, 2, "repartition", OKTOPK) \
  PART(BALANCING, 3, "balancing", OKTOPK)     \
  PART(STEERING, 4, "steering", OKTOPK)       \
  PART(CORRECTION, 5, "correction", GAUSSIANK)

#define ZPS_PLAN_PART_BIT(part, bit, name, scheme) ZPS_WITHOUT_##part = 1u << (bit),
enum zps_without { ZPS_PLAN_PART_LIST(ZPS_PLAN_PART_BIT) };

/* " rotation bucketing ...", for texts. */
#define ZPS_PLAN_PART_WORD(part, bit, name, scheme) " " name
#define ZPS_PLAN_PARTS_TEXT ZPS_PLAN_PART_LIST(ZPS_PLAN_PART_WORD)

/* The part of bit `i`; NULL: there is none. */
const char *zps_without_name(unsigned i);
/* The parts that a scheme has. */
unsigned zps_without_of(enum zps_plan_scheme scheme);
/* "steering+balancing" -> bits of enum zps_without, from the first `len` bytes of `text`. */
zps_err_t zps_without_parse(const char *text, size_t len, unsigned *without_p, struct zps_error *error) ZPS_MUSTCHECK;
/* The other way: "balancing+steering". Returns `text`, which has ZPS_WITHOUT_TEXT_MAX + 1 characters. */
#define ZPS_WITHOUT_TEXT_MAX 79u
const char *zps_without_text(unsigned without, char *text);

#endif
