// Package schema is Pulse's public contract: what a client, a worker and an
// operator's script may rely on, in the forms all sides share.
//
// It owns the JSON Schema of the worker subprotocol (WorkerV1), the strict JSON
// scanner that stands in front of every decoder (CheckJSON), the textual forms
// of ids, times, secrets and names, the catalogue of error codes, and the
// registry of format versions. The frames themselves are in schema/workerv1.
//
// Everything here is pure: values in, values out, on the caller's goroutine.
// Nothing reads a clock, logs, or keeps what it was given. The package imports
// nothing of ours, so that the SDK can stand on it alone.
package schema

import _ "embed"

// WorkerV1 is the JSON Schema of the frames of subprotocol pulse.worker.v1,
// byte for byte as published.
//
//go:embed worker.v1.json
var WorkerV1 string
