// Package console is nothing but tests: a real node, its console, and a real
// browser that walks its screens and does with the mouse and the keys what a
// person would do. Without Chromium they are skipped, except where CI has said
// that it is there (PULSE_CHROMIUM=must).
package console
