#include "worker/examples/libsvm.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/tools/lines.h"

static bool reserve(void *array_p, uint64_t capacity, size_t size) {
  void **array = array_p, *grown = realloc(*array, capacity * size);
  if (grown) *array = grown;
  return grown != NULL;
}

static bool add_entry(struct sample_set *set, uint32_t index, float value) {
  if (set->n_entries == set->entries_capacity) {
    const uint64_t capacity = set->entries_capacity ? 2 * set->entries_capacity : 4096;
    if (!reserve(&set->index, capacity, sizeof *set->index) || !reserve(&set->value, capacity, sizeof *set->value))
      return false;
    set->entries_capacity = capacity;
  }
  set->index[set->n_entries] = index;
  set->value[set->n_entries++] = value;
  return true;
}

static bool begin_sample(struct sample_set *set, double label) {
  if (set->n_own + 1 >= set->capacity) {
    const uint64_t capacity = set->capacity ? 2 * set->capacity : 1024;
    if (!reserve(&set->first, capacity, sizeof *set->first) || !reserve(&set->labels, capacity, sizeof *set->labels))
      return false;
    set->capacity = capacity;
  }
  set->first[set->n_own] = set->n_entries;
  set->labels[set->n_own++] = label;
  return add_entry(set, 0, 1.0f); /* the bias */
}

static zps_err_t parse_sample(struct libsvm *data, struct sample_set *set, const char *path, uint64_t number,
                              char *line, struct zps_error *error) {
  char *at = line, *end;
  const double label = strtod(at, &end);
  if (end == at || !isfinite(label))
    return zps_fail(error, ZPS_ERR_INVALID, "%s, line %llu: '%.20s' is no label: a line is 'label index:value ...'",
                    path, (unsigned long long)number, at);
  bool ok = begin_sample(set, label);
  for (at = end; ok;) {
    at += strspn(at, " \t");
    if (*at == '\0' || *at == '#') break;
    errno = 0;
    const unsigned long long index = strtoull(at, &end, 10);
    if (end == at || *end != ':' || index == 0 || index >= UINT32_MAX || errno != 0)
      return zps_fail(error, ZPS_ERR_INVALID,
                      "%s, line %llu: '%.20s' is no feature: must be index:value, with an index from 1 on", path,
                      (unsigned long long)number, at);
    char *value_text = end + 1;
    const float value = strtof(value_text, &end);
    if (end == value_text || !isfinite(value) || (*end != ' ' && *end != '\t' && *end != '\0'))
      return zps_fail(error, ZPS_ERR_INVALID,
                      "%s, line %llu: feature %llu has no finite value: must be index:value, such as 7:0.5", path,
                      (unsigned long long)number, index);
    ok = add_entry(set, (uint32_t)index, value);
    if (index >= data->n_features) data->n_features = (uint32_t)index + 1;
    at = end;
  }
  if (!ok) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory at line %llu of %s", (unsigned long long)number, path);
  set->first[set->n_own] = set->n_entries;
  return ZPS_OK;
}

/* Opens this rank's part of the file, or all of it where it has no parts: a pipe can be opened once. */
static zps_err_t open_lines(struct libsvm_share *share, struct zps_error *error) {
  zps_err_t code = zps_tools_lines_open(share->path, &share->lines, error);
  if (code != ZPS_OK) return code;
  code = zps_tools_lines_part(share->lines, (uint64_t)share->rank, (uint64_t)share->world, error);
  share->in_parts = code == ZPS_OK;
  if (code == ZPS_OK || code == ZPS_ERR_UNSUPPORTED) return ZPS_OK;
  libsvm_close(share);
  return code;
}

zps_err_t libsvm_count(struct libsvm_share *share, struct zps_error *error) {
  char *line;
  size_t len;
  zps_err_t code = open_lines(share, error);
  share->n_lines = 0;
  if (code != ZPS_OK || !share->in_parts) return code;
  while ((code = zps_tools_lines_next(share->lines, &line, &len, error)) == ZPS_OK) share->n_lines++;
  libsvm_close(share);
  return code == ZPS_ERR_CLOSED ? ZPS_OK : code;
}

void libsvm_close(struct libsvm_share *share) {
  zps_tools_lines_close(share->lines);
  share->lines = NULL;
}

zps_err_t libsvm_read(struct libsvm_share *share, struct libsvm *data, struct zps_error *error) {
  const uint64_t stride = share->in_parts ? 1 : (uint64_t)share->world;
  const uint64_t first = share->in_parts ? 0 : (uint64_t)share->rank;
  *data = (struct libsvm){.n_features = 1};
  data->training.stride = data->held_out.stride = stride;
  data->training.first_number = data->held_out.first_number = first;
  zps_err_t code = share->in_parts ? open_lines(share, error) : ZPS_OK;
  if (code != ZPS_OK) return code;
  char *line;
  size_t len;
  while ((code = zps_tools_lines_next(share->lines, &line, &len, error)) == ZPS_OK) {
    const uint64_t number = share->lines_before + zps_tools_lines_number(share->lines);
    line += strspn(line, " \t");
    if (*line == '\0' || *line == '#') continue;
    struct sample_set *set = share->holdout && number % share->holdout == 0 ? &data->held_out : &data->training;
    const uint64_t position = set->n_all++;
    if (position % stride != first) continue;
    code = parse_sample(data, set, share->path, number, line, error);
    if (code != ZPS_OK) break;
  }
  libsvm_close(share);
  if (code == ZPS_ERR_CLOSED) return ZPS_OK;
  libsvm_free(data);
  return code;
}

void libsvm_place(struct libsvm *data, uint64_t training_before, uint64_t training_all, uint64_t held_out_before,
                  uint64_t held_out_all) {
  data->training.first_number = training_before;
  data->training.n_all = training_all;
  data->held_out.first_number = held_out_before;
  data->held_out.n_all = held_out_all;
}

zps_err_t libsvm_check(const struct libsvm *data, const char *path, struct zps_error *error) {
  if (data->training.n_all > 0) return ZPS_OK;
  if (data->held_out.n_all > 0)
    return zps_fail(error, ZPS_ERR_INVALID, "%s: all %llu samples are held out, and none is left to train on", path,
                    (unsigned long long)data->held_out.n_all);
  return zps_fail(error, ZPS_ERR_INVALID, "%s holds no samples", path);
}

static void set_free(struct sample_set *set) {
  free(set->first);
  free(set->labels);
  free(set->index);
  free(set->value);
}

void libsvm_free(struct libsvm *data) {
  set_free(&data->training);
  set_free(&data->held_out);
  *data = (struct libsvm){.n_features = 0};
}

bool sample_own(const struct sample_set *set, uint64_t number, uint64_t *own_p) {
  if (number < set->first_number || (number - set->first_number) % set->stride != 0) return false;
  *own_p = (number - set->first_number) / set->stride;
  return *own_p < set->n_own;
}

struct sample sample_at(const struct sample_set *set, uint64_t own_index) {
  const uint64_t first = set->first[own_index];
  return (struct sample){set->labels[own_index], (uint32_t)(set->first[own_index + 1] - first), set->index + first,
                         set->value + first};
}
