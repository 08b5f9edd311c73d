package schema

import "fmt"

// Errorf makes an Error with a message for people. It formats like
// fmt.Sprintf; a cause belongs in the log, not in the message, so %w is not
// supported.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Is lets errors.Is(err, schema.NotFound) decide by code, whatever the message.
func (e *Error) Is(target error) bool {
	code, ok := target.(Code)
	return ok && code == e.Code
}

// Error makes a Code usable as the target of errors.Is.
func (c Code) Error() string { return string(c) }
