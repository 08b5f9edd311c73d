package schema

// Defaults and ranges of a queue's settings, in milliseconds where it says so.
// They are checked at the edge; apply fills in nothing.
const (
	LeaseDurationMsMin     = 1_000
	LeaseDurationMsMax     = 120_000
	LeaseDurationMsDefault = 30_000
	OfferDurationMsMin     = 1_000 // its maximum is the lease duration
	OfferDurationMsDefault = 10_000
	MaxWaitingDefault      = 1_000_000
	RetentionMsDefault     = 3 * 24 * 3600 * 1000
	DeadlineMsDefault      = 30 * 24 * 3600 * 1000
	DeadlineMsMax          = 10 * 365 * 24 * 3600 * 1000

	RetryMaxAttemptsDefault      = 3
	RetryInitialDelayMsDefault   = 1_000
	RetryMaxDelayMsDefault       = 60_000
	RetryAttemptTimeoutMsDefault = 3600 * 1000
)
