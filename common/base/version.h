/* Versions of the protocol (proto/PROTOCOL.md), raised with every change that an older peer would misread: that of the
 * control plane, of which `hello` refuses any other, and that of frames, each of which carries its own. */
#ifndef ZPS_BASE_VERSION_H
#define ZPS_BASE_VERSION_H

#define ZPS_PROTOCOL_VERSION 9u

#endif
