// Package deploy holds the files in deploy to their word.
//
// What can be run here is run: the binaries as the Dockerfile builds them, HAProxy and
// nginx with the shipped settings in front of three real nodes, systemd's own
// judgement of the unit. What cannot (a container engine, Kubernetes, Envoy) is
// parsed, a member that is not known being a mistake, and compared with what it
// speaks of: flags with those of the binary, paths with what a node serves, ports
// with each other, certificates with what package pki makes.
//
// HAProxy, nginx and systemd-analyze are Debian's packages haproxy, nginx-light and
// systemd. Where they are missing their tests are skipped, and fail if CI is set.
package deploy
