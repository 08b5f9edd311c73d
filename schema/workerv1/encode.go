package workerv1

// AppendClient appends the frame as compact JSON. An error is a *schema.Error
// (invalid_argument with a violation, or too_large) and dst unchanged: what it
// appends, DecodeClient accepts.
func AppendClient(dst []byte, f ClientFrame) ([]byte, error) {
	panic("being written")
}

// AppendServer is AppendClient for the other direction. The inside of payload
// and result is taken as checked at admission.
func AppendServer(dst []byte, f ServerFrame) ([]byte, error) {
	panic("being written")
}
