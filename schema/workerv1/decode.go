package workerv1

import "pulse/schema"

// WebSocket close codes of a fatal DecodeError.
const (
	CloseInvalidPayload  = 1007 // not UTF-8
	ClosePolicyViolation = 1008 // any other bad frame
	CloseTooBig          = 1009 // too_large
)

// DecodeError says why a frame was refused and what becomes of the connection.
type DecodeError struct {
	Code    schema.Code // invalid_frame, too_large or unsupported_version
	Path    string      // JSON Pointer of the fault, "" for the root or the text as a whole
	Message string      // for people, at most 1,024 code points; never contains a secret
	// MessageID is set when the frame was sound enough for its message id to
	// be trusted: then the answer is a non-fatal error with reply_to.
	MessageID Opt[ID]
	// CloseCode ends the connection when MessageID is not set.
	CloseCode int
}

func (e *DecodeError) Error() string { return string(e.Code) + ": " + e.Message }

// Fatal says that the connection has to end.
func (e *DecodeError) Fatal() bool { return !e.MessageID.Set }

// DecodeClient decodes one frame from a worker. An error is a *DecodeError.
// Business JSON in the frame is a subslice of data, which the frame keeps alive
// and the caller must not change.
func DecodeClient(data []byte) (ClientFrame, error) {
	panic("being written")
}

// DecodeServer decodes one frame from the server, like DecodeClient.
func DecodeServer(data []byte) (ServerFrame, error) {
	panic("being written")
}
