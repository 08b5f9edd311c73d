// Generated from schema/catalogue.go by "go generate ./schema"; do not edit.

/** What a code means beside its name. */
interface Info {
  /** The same request, with the same id, may succeed later. */
  readonly retryable: boolean;
  /** As an error frame it ends the worker's connection. */
  readonly fatal: boolean;
}

/** The stable error codes of the cluster. */
export const catalogue = {
  /** The frame is not JSON by the strict rules or not a frame of the subprotocol; nothing happened. */
  invalid_frame: { retryable: false, fatal: false },
  /** The request breaks a rule; the violations name each place and what is wrong there. */
  invalid_argument: { retryable: false, fatal: false },
  /** The protocol version of the frame is not one this server speaks. */
  unsupported_version: { retryable: false, fatal: false },
  /** The credential is missing, wrong or revoked. */
  unauthenticated: { retryable: false, fatal: true },
  /** The caller, or the secret it sent, may not do this. */
  forbidden: { retryable: false, fatal: false },
  /** There is nothing with this id or name in the namespace, or it is past its retention. */
  not_found: { retryable: false, fatal: false },
  /** The present state of the thing, or another thing with the same business key, does not allow this. */
  conflict: { retryable: false, fatal: false },
  /** The message id, Idempotency-Key or sequence was used before with other content. */
  operation_conflict: { retryable: false, fatal: false },
  /** A reconnect has to repeat queue, capabilities and flags of the instance; a changed worker takes a new instance id. */
  identity_conflict: { retryable: false, fatal: false },
  /** The first frame of a connection has to be worker.hello. */
  session_required: { retryable: false, fatal: true },
  /** A newer registration of the same instance has replaced this session. */
  session_superseded: { retryable: false, fatal: true },
  /** The session is over because its gateway or connection was silent too long; register again and repeat. */
  session_expired: { retryable: true, fatal: true },
  /** A later attempt of the task exists; this one has no say any more. */
  stale_epoch: { retryable: false, fatal: false },
  /** The attempt is over, so its lease cannot be used. */
  lease_lost: { retryable: false, fatal: false },
  /** An attempt that was not started can only be refused, or cancelled after a cancel request. */
  not_started: { retryable: false, fatal: false },
  /** The attempt was started before under another message id. */
  already_started: { retryable: false, fatal: false },
  /** CANCELLED is an outcome only after somebody asked to cancel the task. */
  cancel_not_requested: { retryable: false, fatal: false },
  /** A worker that drains cannot take work again; a new instance can. */
  drain_is_final: { retryable: false, fatal: false },
  /** A capacity with a larger sequence is in force already. */
  stale_sequence: { retryable: false, fatal: false },
  /** The thing has changed since the expected revision; read it again and decide anew. */
  revision_conflict: { retryable: false, fatal: false },
  /** The queue has as many waiting tasks as its max_waiting allows. */
  queue_full: { retryable: true, fatal: false },
  /** The caller has used up a limit that time or retention frees again. */
  rate_limited: { retryable: true, fatal: false },
  /** The frame, body or business JSON has more bytes than accepted; nothing happened. */
  too_large: { retryable: false, fatal: false },
  /** The node that was asked does not lead the cluster now; nothing happened. */
  not_leader: { retryable: true, fatal: false },
  /** The cluster has no leader that can be reached now; nothing happened. */
  no_leader: { retryable: true, fatal: false },
  /** The caller's deadline passed before the request was handed over; nothing happened. */
  deadline_expired: { retryable: true, fatal: false },
  /** The leader is of a version that does not know the command yet; nothing happened. */
  unknown_command: { retryable: true, fatal: false },
  /** The request was handed over and its outcome is not known; repeat it with the same id to learn it. */
  result_unknown: { retryable: true, fatal: false },
  /** The cluster cannot take the request now; nothing happened. */
  unavailable: { retryable: true, fatal: false },
  /** The server has met a fault of its own; its log has the details. */
  internal: { retryable: false, fatal: false },
} as const satisfies Record<string, Info>;

/** A code of the catalogue. A newer cluster may send one that is not in it. */
export type KnownCode = keyof typeof catalogue;

/** Looks a code up; one that is not known counts as neither retryable nor fatal. */
export function infoOf(code: string): Info {
  return Object.hasOwn(catalogue, code) ? catalogue[code as KnownCode] : { retryable: false, fatal: false };
}
