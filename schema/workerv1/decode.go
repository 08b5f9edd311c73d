package workerv1

import (
	"fmt"

	"pulse/schema"
	"pulse/schema/internal/jsontext"
)

// What the decoder holds a frame to beyond schema.WorkerV1 with format date-time
// asserted:
//
//   - the frame has at most 1 MiB, payload and result at most 256 KiB each, as sent;
//   - the text keeps the rules of schema.CheckJSON: UTF-8, no name twice in an
//     object, no half of a surrogate pair, numbers of at most 64 characters in the
//     range of a double, nothing behind the value;
//   - depth is at most 64, the root being 1; in a frame from the server 66, because
//     a payload sits two levels deeper in task.assign than in the request body of
//     depth 64 that brought it in;
//   - a concurrency key has no control character (Unicode category Cc) and neither
//     begins nor ends with a blank (Unicode white space);
//   - a time is a date of the calendar, and its second is below 60: the servers'
//     clock has no leap seconds.
//
// Which refusal when several apply: the text as a whole first, then the version,
// then everything else in the order it is met.

// WebSocket close codes of a fatal DecodeError.
const (
	CloseInvalidPayload  = 1007 // not UTF-8
	ClosePolicyViolation = 1008 // any other bad frame
	CloseTooBig          = 1009 // too_large
)

// serverDepthMax is explained at the top of the file.
const serverDepthMax = schema.DepthMax + 2

// DecodeError says why a frame was refused and what becomes of the connection.
type DecodeError struct {
	Code    schema.Code // invalid_frame, too_large or unsupported_version
	Path    string      // JSON Pointer of the fault, "" for the root or the text as a whole
	Message string      // for people, at most 1,024 code points; never contains a secret
	// MessageID is set when the frame was sound enough for its message id to
	// be trusted: an object that follows the grammar to its end and has one
	// valid message_id. Then the answer is a non-fatal error with reply_to.
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
	r := reader{data: data}
	env := r.open(schema.DepthMax, clientShape)
	f := ClientFrame{MessageID: env.messageID, SessionID: env.sessionID.V}
	switch env.kind {
	case TypeHello:
		f.Body = r.hello()
	case TypeCapacity:
		f.Body = r.capacity()
	case TypeResume:
		body := new(Resume)
		r.attemptRef(&body.Ref)
		f.Body = body
	case TypeStart:
		body := new(Start)
		r.attemptRef(&body.Ref)
		f.Body = body
	case TypeRenew:
		body := new(Renew)
		r.attemptRef(&body.Ref)
		f.Body = body
	case TypeFinish:
		f.Body = r.finish()
	default: // refused by open
	}
	if r.failed() {
		return ClientFrame{}, r.refusal()
	}
	return f, nil
}

// DecodeServer decodes one frame from the server, like DecodeClient.
func DecodeServer(data []byte) (ServerFrame, error) { return decodeServer(reader{data: data}) }

// DecodeServerTraced decodes a frame of SubprotocolTraced.
func DecodeServerTraced(data []byte) (ServerFrame, error) {
	return decodeServer(reader{data: data, traced: true})
}

func decodeServer(r reader) (ServerFrame, error) {
	env := r.open(serverDepthMax, serverShape)
	f := ServerFrame{MessageID: env.messageID, SessionID: env.sessionID, ReplyTo: env.replyTo}
	switch env.kind {
	case TypeWelcome:
		f.Body = r.welcome()
	case TypeAssign:
		f.Body = r.assign()
	case TypeAck:
		f.Body = r.ack()
	case TypeError:
		f.Body = r.error()
	case TypeCancel:
		f.Body = r.cancel()
	default: // refused by open
	}
	if r.failed() {
		return ServerFrame{}, r.refusal()
	}
	return f, nil
}

// refusal turns the fault of the reader into the error of the decoder.
func (r *reader) refusal() *DecodeError {
	e := &DecodeError{Code: r.fault.code, Message: r.fault.message, CloseCode: ClosePolicyViolation}
	if r.fault.sound {
		e.MessageID = r.trustedID()
	}
	if r.fault.code != schema.TooLarge || r.fault.sound {
		e.Path = jsontext.Pointer(r.data, r.fault.offset)
	}
	if e.Path != "" {
		e.Message = e.Path + ": " + e.Message
	}
	switch {
	case r.fault.notUTF8:
		e.CloseCode = CloseInvalidPayload
	case e.Code == schema.TooLarge:
		e.CloseCode = CloseTooBig
	}
	return e
}

// trustedID is the message id of a sound text, if the root is an object with
// exactly one and it is valid.
func (r *reader) trustedID() (id Opt[ID]) {
	walk := reader{data: r.data}
	if walk.at = jsontext.SkipSpace(walk.data, 0); walk.data[walk.at] != '{' {
		return id
	}
	walk.at++
	for count := 0; walk.member(); {
		if string(walk.name) != "message_id" {
			walk.skip()
			continue
		}
		if count++; count > 1 {
			return Opt[ID]{}
		}
		walk.id(&id.V)
		id.Set = true
	}
	if walk.failed() {
		return Opt[ID]{}
	}
	return id
}

// Members of the root, as bits of a shape and as places in an envelope.
const (
	inVersion = iota
	inType
	inMessageID
	inSessionID
	inReplyTo
	inBody
	inError
	rootMembers
)

var rootNames = [rootMembers]string{"protocol_version", "type", "message_id", "session_id", "reply_to", "body", "error"}

// shape is which members the root of a frame has to have and which it may have.
type shape struct{ required, allowed uint8 }

const (
	always    = 1<<inVersion | 1<<inType | 1<<inMessageID
	inSession = always | 1<<inSessionID | 1<<inBody
)

// clientShape knows the frames of a worker; kind is empty for others.
func clientShape(name []byte) (kind Type, s shape) {
	switch Type(name) {
	case TypeHello:
		return TypeHello, shape{always | 1<<inBody, always | 1<<inBody}
	case TypeCapacity:
		return TypeCapacity, shape{inSession, inSession}
	case TypeResume:
		return TypeResume, shape{inSession, inSession}
	case TypeStart:
		return TypeStart, shape{inSession, inSession}
	case TypeRenew:
		return TypeRenew, shape{inSession, inSession}
	case TypeFinish:
		return TypeFinish, shape{inSession, inSession}
	default:
		return "", shape{}
	}
}

// serverShape knows the frames of the server.
func serverShape(name []byte) (kind Type, s shape) {
	const reply = inSession | 1<<inReplyTo
	switch Type(name) {
	case TypeWelcome:
		return TypeWelcome, shape{reply, reply}
	case TypeAssign:
		return TypeAssign, shape{inSession, inSession}
	case TypeAck:
		return TypeAck, shape{reply, reply}
	case TypeError:
		return TypeError, shape{always | 1<<inError, always | 1<<inError | 1<<inSessionID | 1<<inReplyTo}
	case TypeCancel:
		return TypeCancel, shape{inSession, inSession}
	default:
		return "", shape{}
	}
}

// envelope is what surrounds the body of a frame.
type envelope struct {
	kind      Type // empty if the frame is refused
	messageID ID
	sessionID Opt[ID]
	replyTo   Opt[ID]
}

// open checks the text and the members of its root, and leaves the reader at the
// body (or error).
func (r *reader) open(depthMax int, shapeOf func([]byte) (Type, shape)) (env envelope) {
	if len(r.data) > FrameBytesMax {
		r.fault = fault{code: schema.TooLarge, message: fmt.Sprintf("a frame has at most %d bytes", FrameBytesMax)}
		return env
	}
	var root jsontext.Members
	if bad := jsontext.Scan(r.data, depthMax, &root); bad != nil {
		r.fault = fault{
			code: schema.InvalidFrame, offset: bad.Offset, message: bad.Message,
			sound: bad.Sound, notUTF8: bad.Kind == jsontext.UTF8,
		}
		return env
	}
	start := jsontext.SkipSpace(r.data, 0)
	if root.Count < 0 {
		r.fail(start, "a frame must be an object")
		return env
	}

	var place [rootMembers]int // of the values; 0 = absent, for no member's value is there
	var present uint8
	stranger := -1
	for _, m := range root.At[:min(root.Count, len(root.At))] {
		r.at = int(m.Key)
		r.readName()
		if i := rootMember(r.name); i >= 0 {
			place[i] = int(m.Value)
			present |= 1 << i
		} else if stranger < 0 {
			stranger = int(m.Key)
		}
	}
	missing := func(i int) bool {
		if present&(1<<i) == 0 {
			r.fail(start, "the member "+rootNames[i]+" is missing")
		}
		return r.failed()
	}

	if missing(inVersion) {
		return env
	}
	if r.at = place[inVersion]; !r.isString() || string(r.text(1)) != Version {
		// Also a version that is no string: a later one may spell it so.
		r.fault = fault{}
		r.failAs(schema.UnsupportedVersion, place[inVersion], `the only protocol_version is "1"`)
		return env
	}
	if missing(inMessageID) || missing(inType) {
		return env
	}
	r.at = place[inMessageID]
	r.id(&env.messageID)
	r.at = place[inType]
	kind, shape := shapeOf(r.text(len(TypeWelcome)))
	if kind == "" {
		r.fail(place[inType], "is not the type of a frame in this direction")
	}
	if r.failed() {
		return env
	}
	for i := range rootMembers {
		switch bit := uint8(1) << i; {
		case shape.required&bit != 0 && missing(i):
			return env
		case present&^shape.allowed&bit != 0:
			r.fail(place[i], "is not a member of this frame")
			return env
		}
	}
	if stranger >= 0 {
		r.fail(stranger, "is not a member of this frame")
		return env
	}
	if env.sessionID.Set = present&(1<<inSessionID) != 0; env.sessionID.Set {
		r.at = place[inSessionID]
		r.id(&env.sessionID.V)
	}
	if env.replyTo.Set = present&(1<<inReplyTo) != 0; env.replyTo.Set {
		r.at = place[inReplyTo]
		r.id(&env.replyTo.V)
	}
	if r.failed() {
		return env
	}
	r.at = max(place[inBody], place[inError])
	env.kind = kind
	return env
}

func rootMember(name []byte) int {
	switch string(name) {
	case "protocol_version":
		return inVersion
	case "type":
		return inType
	case "message_id":
		return inMessageID
	case "session_id":
		return inSessionID
	case "reply_to":
		return inReplyTo
	case "body":
		return inBody
	case "error":
		return inError
	}
	return -1
}
