/* zenpsd. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/base/descriptors.h"
#include "common/base/exit.h"
#include "common/net/net.h"
#include "proto/wire.h"
#include "server/daemon/daemon.h"
#include "server/daemon/systemd.h"

#define LAST_WORDS_MS 500u /* for the log's reader, at the end */
#define ZPS_LOG_COMPONENT "zenpsd"
#include "common/base/log.h"

static void print_line(void *ctx, const char *text) {
  (void)ctx;
  puts(text);
}

static void print_profile(const struct zps_options *options) {
  char text[ZPS_PROFILE_TEXT_SIZE];
  if (zps_config_profile_text(&zps_options_table, options, text, sizeof text)) puts(text);
}

static void list_providers(const struct zps_options *options) {
  const struct zps_net_config config = {.provider = options->fabric_provider,
                                        .interface = options->fabric_interface,
                                        .subnet = options->fabric_subnet,
                                        .number = (unsigned)options->server_index,
                                        .rails = (unsigned)options->fabric_rails,
                                        .max_msg = ZPS_WIRE_MESSAGE_MAX};
  zps_net_list(&config, print_line, NULL);
}

struct sought {
  const char *name;
  size_t len;
  bool is_there;
};

/* Lines begin with the provider. The one for TCP has two names. */
static void seek_provider(void *ctx, const char *line) {
  struct sought *const sought = ctx;
  const bool is_tcp = strcmp(sought->name, "net") == 0 || strcmp(sought->name, "tcp") == 0;
  sought->is_there |= is_tcp ? strncmp(line, "net ", 4) == 0 || strncmp(line, "tcp ", 4) == 0
                             : strncmp(line, sought->name, sought->len) == 0 && line[sought->len] == ' ';
}

/* For --check. A server looks for it when it opens the fabric. */
static zps_err_t check_provider(const struct zps_options *options, struct zps_error *error) {
  static const char fault[] = "fault+";
  const char *const name = options->fabric_provider;
  struct sought sought = {.name = strncmp(name, fault, strlen(fault)) == 0 ? name + strlen(fault) : name};
  sought.len = strlen(sought.name);
  if (!zps_options_is_server(options) || strcmp(sought.name, "auto") == 0 || strcmp(sought.name, "tls") == 0)
    return ZPS_OK;
  zps_net_list(&(struct zps_net_config){.provider = sought.name, .max_msg = ZPS_WIRE_MESSAGE_MAX}, seek_provider,
               &sought);
  if (sought.is_there) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID,
                  "%s is '%.100s', which this host does not have: must be one that zenpsd --list-providers shows",
                  zps_config_label("fabric.provider"), name);
}

int main(int argc, char **argv) {
  struct zps_options options;
  struct zps_config_rest rest;
  struct zps_error error;
  zps_descriptors_fill();
  signal(SIGPIPE, SIG_IGN);
  zps_err_t err = zps_config_load(&zps_options_table, argc, argv, NULL, &options, &rest, &error);
  if (err) {
    fprintf(stderr, "zenpsd: %s\n", error.text);
    return ZPS_EXIT_USAGE;
  }
  enum zps_exit status = ZPS_EXIT_OK;
  err = rest.exit_now ? ZPS_OK : zps_options_complete(&options, &error);
  if (!err && !rest.exit_now && options.check) err = check_provider(&options, &error);
  if (err) {
    fprintf(stderr, "zenpsd: %s\n", error.text);
    status = ZPS_EXIT_USAGE;
  } else if (!rest.exit_now && options.list_providers) {
    list_providers(&options);
  } else if (!rest.exit_now && options.check) {
    print_profile(&options);
  } else if (!rest.exit_now) {
    zps_log_set_level((enum zps_log_level)options.log_level);
    zps_journal_set_format((enum zps_log_format)options.log_format);
    err = zps_daemon_run(&options, argc, argv, rest.file_read, &error);
    if (err) {
      zps_log_failure(ZPS_LOG_ERROR, &error);
      status = ZPS_EXIT_FAILED;
    }
    zps_log_flush(LAST_WORDS_MS);
  }
  zps_config_fini(&zps_options_table, &options);
  return status;
}
