package schema

import "net/http"

//go:generate go test -run TestErrorsPageIsCurrent -update .

// Fatal says what an error does to the worker connection it is sent on.
type Fatal uint8

const (
	// FatalNever leaves the connection open: the error answers one frame.
	FatalNever Fatal = iota
	// FatalUnanswered ends it only when the frame's message id cannot be
	// trusted, so that nobody could tell which frame the error is about
	// (semantics section 8). The decoder decides it frame by frame.
	FatalUnanswered
	// FatalAlways ends it: what follows on this connection cannot be right
	// either.
	FatalAlways
)

// Info is the entry of a Code in the catalogue.
type Info struct {
	Code       Code
	Fatal      Fatal
	Retryable  bool // the same request, with the same id, may succeed later
	HTTPStatus int
	Meaning    string // one sentence
}

// Fatal codes are those after which no frame of the connection could be served:
// the client has not registered (session_required, section 7 closes it with 1008),
// or the session it speaks for is gone (superseded, expired), or the credential of
// the connection is no longer good. A refused hello is not among them (forbidden,
// identity_conflict, not_found, unsupported_version): it is answered by reply_to
// and the ten seconds for a good one go on.
var catalogue = []Info{
	{InvalidFrame, FatalUnanswered, false, http.StatusBadRequest, "The frame is not JSON by the strict rules or not a frame of the subprotocol; nothing happened."},
	{InvalidArgument, FatalNever, false, http.StatusBadRequest, "The request breaks a rule; the violations name each place and what is wrong there."},
	{UnsupportedVersion, FatalUnanswered, false, http.StatusBadRequest, "The protocol version of the frame is not one this server speaks."},
	{Unauthenticated, FatalAlways, false, http.StatusUnauthorized, "The credential is missing, wrong or revoked."},
	{Forbidden, FatalNever, false, http.StatusForbidden, "The caller, or the secret it sent, may not do this."},
	{NotFound, FatalNever, false, http.StatusNotFound, "There is nothing with this id or name in the namespace, or it is past its retention."},
	{Conflict, FatalNever, false, http.StatusConflict, "The present state of the thing, or another thing with the same business key, does not allow this."},
	{OperationConflict, FatalNever, false, http.StatusConflict, "The message id, Idempotency-Key or sequence was used before with other content."},
	{IdentityConflict, FatalNever, false, http.StatusConflict, "A reconnect has to repeat queue, capabilities and flags of the instance; a changed worker takes a new instance id."},
	{SessionRequired, FatalAlways, false, http.StatusConflict, "The first frame of a connection has to be worker.hello."},
	{SessionSuperseded, FatalAlways, false, http.StatusConflict, "A newer registration of the same instance has replaced this session."},
	{SessionExpired, FatalAlways, true, http.StatusConflict, "The session is over because its gateway or connection was silent too long; register again and repeat."},
	{StaleEpoch, FatalNever, false, http.StatusConflict, "A later attempt of the task exists; this one has no say any more."},
	{LeaseLost, FatalNever, false, http.StatusConflict, "The attempt is over, so its lease cannot be used."},
	{NotStarted, FatalNever, false, http.StatusConflict, "An attempt that was not started can only be refused, or cancelled after a cancel request."},
	{AlreadyStarted, FatalNever, false, http.StatusConflict, "The attempt was started before under another message id."},
	{CancelNotRequested, FatalNever, false, http.StatusConflict, "CANCELLED is an outcome only after somebody asked to cancel the task."},
	{DrainIsFinal, FatalNever, false, http.StatusConflict, "A worker that drains cannot take work again; a new instance can."},
	{StaleSequence, FatalNever, false, http.StatusConflict, "A capacity with a larger sequence is in force already."},
	{RevisionConflict, FatalNever, false, http.StatusConflict, "The thing has changed since the expected revision; read it again and decide anew."},
	{QueueFull, FatalNever, true, http.StatusTooManyRequests, "The queue has as many waiting tasks as its max_waiting allows."},
	{RateLimited, FatalNever, true, http.StatusTooManyRequests, "The caller has used up a limit that time or retention frees again."},
	{TooLarge, FatalUnanswered, false, http.StatusRequestEntityTooLarge, "The frame, body or business JSON has more bytes than accepted; nothing happened."},
	{NotLeader, FatalNever, true, http.StatusServiceUnavailable, "The node that was asked does not lead the cluster now; nothing happened."},
	{NoLeader, FatalNever, true, http.StatusServiceUnavailable, "The cluster has no leader that can be reached now; nothing happened."},
	{DeadlineExpired, FatalNever, true, http.StatusGatewayTimeout, "The caller's deadline passed before the request was handed over; nothing happened."},
	{UnknownCommand, FatalNever, true, http.StatusServiceUnavailable, "The leader is of a version that does not know the command yet; nothing happened."},
	{ResultUnknown, FatalNever, true, http.StatusGatewayTimeout, "The request was handed over and its outcome is not known; repeat it with the same id to learn it."},
	{Unavailable, FatalNever, true, http.StatusServiceUnavailable, "The cluster cannot take the request now; nothing happened."},
	{Internal, FatalNever, false, http.StatusInternalServerError, "The server has met a fault of its own; its log has the details."},
}

var byCode = func() map[Code]*Info {
	index := make(map[Code]*Info, len(catalogue))
	for i := range catalogue {
		index[catalogue[i].Code] = &catalogue[i]
	}
	return index
}()

// Codes lists the catalogue in its order.
func Codes() []Info { return append([]Info(nil), catalogue...) }

// Lookup finds a code in the catalogue. A code it does not have, from a newer
// server perhaps, is treated as Internal and not found.
func Lookup(code Code) (info Info, found bool) {
	if entry := byCode[code]; entry != nil {
		return *entry, true
	}
	info = *byCode[Internal]
	info.Code = code
	return info, false
}

// Fatal says whether an error frame with this code always ends the connection.
func (c Code) Fatal() bool {
	info, _ := Lookup(c)
	return info.Fatal == FatalAlways
}

// Retryable says whether the same request, with the same id, may succeed later.
func (c Code) Retryable() bool {
	info, _ := Lookup(c)
	return info.Retryable
}

// HTTPStatus is the status of a problem+json answer with this code.
func (c Code) HTTPStatus() int {
	info, _ := Lookup(c)
	return info.HTTPStatus
}

// URN is the type of a problem+json answer with this code.
func (c Code) URN() string { return "urn:pulse:error:" + string(c) }
