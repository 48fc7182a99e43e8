/* The names of options as the user gave them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/config_impl.h"

/* Entries are never freed, since other threads may hold their texts. The last one of a name comes first. */
struct said {
  struct said *next;
  const char *text;
  char name[]; /* followed by the text */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct said *first;

/* With the lock. */
static const char *find(const char *name) {
  for (const struct said *said = first; said; said = said->next)
    if (strcmp(said->name, name) == 0) return said->text;
  return name;
}

/* With the lock: an entry of former loads, taken out of the list. NULL: there is none. */
static struct said *take(const char *name, const char *text) {
  for (struct said **link = &first; *link; link = &(*link)->next) {
    struct said *const said = *link;
    if (strcmp(said->name, name) != 0 || strcmp(said->text, text) != 0) continue;
    *link = said->next;
    return said;
  }
  return NULL;
}

/* With the lock. Without memory the option keeps its former name. */
static void note(const char *name, const char *text) {
  const size_t name_len = strlen(name), text_len = strlen(text);
  struct said *said = take(name, text);
  if (!said) {
    said = malloc(sizeof *said + name_len + text_len + 2);
    if (!said) return;
    memcpy(said->name, name, name_len + 1);
    said->text = memcpy(said->name + name_len + 1, text, text_len + 1);
  }
  said->next = first;
  first = said;
}

/* The name of an option that nobody has set: its flag, where the program takes it from no file. */
static void unset_name(const struct zps_opt *opt, char name[ZPS_OPT_SAID_SIZE]) {
  char flag[ZPS_OPT_NAME_SIZE];
  zps_opt_flag_name(opt, flag);
  if (opt->flags & ZPS_OPT_NO_FILE)
    snprintf(name, ZPS_OPT_SAID_SIZE, "--%s", flag);
  else
    snprintf(name, ZPS_OPT_SAID_SIZE, "%s", opt->name);
}

void zps_config_note_labels(const struct zps_config_load *load) {
  char name[ZPS_OPT_SAID_SIZE];
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < load->n_opts; i++) {
    const struct zps_opt *const opt = &load->table->opts[i];
    if (!load->said[i][0]) unset_name(opt, name);
    note(opt->name, load->said[i][0] ? load->said[i] : name);
  }
  pthread_mutex_unlock(&lock);
}

const char *zps_config_label(const char *name) {
  pthread_mutex_lock(&lock);
  const char *const text = find(name);
  pthread_mutex_unlock(&lock);
  return text == name ? name : text;
}
