// Package apiv1 holds the request bodies of the HTTP API under /v1 as Go values,
// with the one strict decoder the gateway uses, and the form in which two
// requests are compared.
//
// A body is first held to the rules of schema.CheckJSON, so the decoder never
// meets a text that two readers could understand differently. It then refuses
// unknown members, wrong types, and whatever is out of range, and names every
// place that is wrong (up to a bound) as a JSON Pointer into the body.
//
// Business JSON (payload, result) is never parsed into values: it stays the bytes
// that were sent, as a subslice of the body.
//
// # When two requests are equal
//
// An Idempotency-Key and a business key stand for a content. It is the SHA-256
// of this text, which anybody can make again:
//
//	<operation> LF
//	<member> ":" <length in bytes> ":" <value> LF     for each member present
//
// The operations and their members, in order, are those of the Content methods.
// A value is what was sent: strings after unescaping, business JSON byte for
// byte, whole numbers in decimal, times in the canonical form. Members with a
// constant default are present with it (priority, delay_ms, recovery_safety and
// the settings of a queue); what a queue or the clock would fill in is absent.
//
// All functions are pure and safe from any goroutine.
package apiv1
