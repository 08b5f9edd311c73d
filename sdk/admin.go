package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"pulse/schema"
)

// Queue is a queue with its settings and how it stands.
type Queue struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Namespace string    `json:"namespace"`
	Revision  uint64    `json:"revision,string"`
	CreatedAt time.Time `json:"created_at,omitzero"`
	UpdatedAt time.Time `json:"updated_at,omitzero"`
	QueueSettings

	Waiting     uint64 `json:"waiting,string"`
	Active      uint64 `json:"active,string"`
	NeedsReview uint64 `json:"needs_review,string"`
}

// QueueSettings are what PutQueue sets; zero takes the default.
type QueueSettings struct {
	LeaseDurationMillis   int64        `json:"lease_duration_ms,omitempty"`
	OfferDurationMillis   int64        `json:"offer_duration_ms,omitempty"`
	MaxActive             int          `json:"max_active,omitempty"` // 0 = no cap
	MaxWaiting            uint64       `json:"max_waiting,omitempty,string"`
	RetentionMillis       int64        `json:"retention_ms,omitempty"`
	DefaultDeadlineMillis int64        `json:"default_deadline_ms,omitempty"`
	AgeingMillis          int64        `json:"ageing_ms,omitempty"` // 0 = off
	DefaultRetry          *RetryPolicy `json:"default_retry,omitempty"`
	Paused                bool         `json:"paused,omitempty"`
}

// PutQueue creates a queue or replaces its settings.
func (c *Client) PutQueue(ctx context.Context, name string, settings QueueSettings, opts ...CallOption) (*Queue, error) {
	body, err := marshal(struct {
		QueueSettings
		expectation
	}{settings, expectation{options(opts).expectedRevision}})
	if err != nil {
		return nil, err
	}
	return c.changeQueue(ctx, http.MethodPut, c.queuePath(name), body, opts)
}

// PauseQueue stops assignments from a queue; it keeps taking tasks.
func (c *Client) PauseQueue(ctx context.Context, name string, opts ...CallOption) (*Queue, error) {
	return c.setPaused(ctx, name, "pause", opts)
}

// ResumeQueue lets a paused queue go on.
func (c *Client) ResumeQueue(ctx context.Context, name string, opts ...CallOption) (*Queue, error) {
	return c.setPaused(ctx, name, "resume", opts)
}

func (c *Client) setPaused(ctx context.Context, name, verb string, opts []CallOption) (*Queue, error) {
	body, err := marshal(expectation{options(opts).expectedRevision})
	if err != nil {
		return nil, err
	}
	return c.changeQueue(ctx, http.MethodPost, c.queuePath(name)+":"+verb, body, opts)
}

// expectation is the part of a change that WithExpectedRevision makes.
type expectation struct {
	ExpectedRevision uint64 `json:"expected_revision,omitempty,string"`
}

func (c *Client) changeQueue(ctx context.Context, method, path string, body []byte, opts []CallOption) (*Queue, error) {
	queue := new(Queue)
	if err := c.change(ctx, method, path, body, queue, opts); err != nil {
		return nil, err
	}
	return queue, nil
}

// DeleteQueue removes an empty queue.
func (c *Client) DeleteQueue(ctx context.Context, name string, opts ...CallOption) error {
	path := c.queuePath(name)
	if revision := options(opts).expectedRevision; revision != 0 {
		path += "?expected_revision=" + strconv.FormatUint(revision, 10)
	}
	return c.change(ctx, http.MethodDelete, path, nil, nil, opts)
}

// Queue reads a queue.
func (c *Client) Queue(ctx context.Context, name string, opts ...CallOption) (*Queue, error) {
	queue := new(Queue)
	if err := c.read(ctx, c.queuePath(name), nil, queue, opts); err != nil {
		return nil, err
	}
	return queue, nil
}

// Queues walks over the queues of the namespace.
func (c *Client) Queues(ctx context.Context, opts ...CallOption) iter.Seq2[*Queue, error] {
	return walk[*Queue](ctx, c, c.path("/queues"), nil, "queues", opts)
}

// WorkerInfo is a worker instance as the cluster sees it.
type WorkerInfo struct {
	InstanceID                string       `json:"instance_id"`
	Namespace                 string       `json:"namespace"`
	Queue                     string       `json:"queue"`
	State                     string       `json:"state"` // connected, draining, disconnected, ended
	Capacity                  int          `json:"capacity"`
	Active                    int          `json:"active"` // attempts offered or running
	Draining                  bool         `json:"draining"`
	Capabilities              []Capability `json:"capabilities"`
	CancellationNotifications bool         `json:"cancellation_notifications"`
	ConcurrencyKeys           bool         `json:"concurrency_keys"`
	SessionID                 string       `json:"session_id"`
	SessionEpoch              uint64       `json:"session_epoch,string"`
	GatewayID                 string       `json:"gateway_id"`
	Peer                      string       `json:"peer,omitempty"` // where it connected from, as the gateway saw it
	CreatedAt                 time.Time    `json:"created_at"`
	ConnectedAt               time.Time    `json:"connected_at,omitzero"`
	DisconnectedAt            time.Time    `json:"disconnected_at,omitzero"`
	ExpiresAt                 time.Time    `json:"expires_at,omitzero"`
	HeardAt                   time.Time    `json:"heard_at,omitzero"` // when its last frame arrived, to two seconds
	Leases                    []HeldLease  `json:"leases,omitempty"`  // when it is read alone
}

// HeldLease is a live attempt of a worker.
type HeldLease struct {
	TaskID     string    `json:"task_id"`
	AttemptID  string    `json:"attempt_id"`
	Epoch      uint64    `json:"epoch,string"`
	State      State     `json:"state"` // LEASED or RUNNING
	Handler    string    `json:"handler"`
	LeasedAt   time.Time `json:"leased_at"`
	StartedAt  time.Time `json:"started_at,omitzero"`
	LeaseUntil time.Time `json:"lease_until"`
}

// Capability is what a worker can run.
type Capability struct {
	Handler        string `json:"handler"`
	HandlerVersion string `json:"handler_version"`
	PayloadVersion string `json:"payload_version"`
}

// Workers walks over the worker instances of a queue, or of the namespace if
// queue is empty.
func (c *Client) Workers(ctx context.Context, queue string, opts ...CallOption) iter.Seq2[*WorkerInfo, error] {
	query := url.Values{}
	if queue != "" {
		query.Set("queue", queue)
	}
	return walk[*WorkerInfo](ctx, c, c.path("/workers"), query, "workers", opts)
}

// Worker reads one worker instance.
func (c *Client) Worker(ctx context.Context, instanceID string, opts ...CallOption) (*WorkerInfo, error) {
	worker := new(WorkerInfo)
	if err := c.read(ctx, c.path("/workers/"+escape(instanceID)), nil, worker, opts); err != nil {
		return nil, err
	}
	return worker, nil
}

// DrainWorker gives a worker no new tasks from now on; it finishes what it has.
func (c *Client) DrainWorker(ctx context.Context, instanceID string, opts ...CallOption) (*WorkerInfo, error) {
	worker := new(WorkerInfo)
	if err := c.change(ctx, http.MethodPost, c.path("/workers/"+escape(instanceID)+":drain"), nil, worker, opts); err != nil {
		return nil, err
	}
	return worker, nil
}

// Key is a concurrency key that is held or waited for.
type Key struct {
	Key          string    `json:"key"`
	HolderTaskID string    `json:"holder_task_id,omitempty"` // "" = free
	AttemptID    string    `json:"attempt_id,omitempty"`
	Token        uint64    `json:"token,omitempty,string"`
	AcquiredAt   time.Time `json:"acquired_at,omitzero"`
	InReview     bool      `json:"in_review,omitempty"` // kept by a task in NEEDS_REVIEW
	Waiters      uint64    `json:"waiters,omitempty,string"`
}

// Keys walks over the concurrency keys that are held or waited for.
func (c *Client) Keys(ctx context.Context, opts ...CallOption) iter.Seq2[*Key, error] {
	return walk[*Key](ctx, c, c.path("/keys"), nil, "keys", opts)
}

// Key reads one concurrency key; nobody holding it is no error.
func (c *Client) Key(ctx context.Context, key string, opts ...CallOption) (*Key, error) {
	out := new(Key)
	if err := c.read(ctx, c.path("/keys/"+escape(key)), nil, out, opts); err != nil {
		return nil, err
	}
	return out, nil
}

// FreeKey takes a key from a task in NEEDS_REVIEW, which would keep it until its
// review. The note says why; it is recorded. A key that an attempt holds is a
// conflict: cancel its task. One that nobody holds is answered as it is.
func (c *Client) FreeKey(ctx context.Context, key, note string, opts ...CallOption) (*Key, error) {
	body, err := marshal(map[string]string{"note": note})
	if err != nil {
		return nil, err
	}
	out := new(Key)
	if err := c.change(ctx, http.MethodPost, c.path("/keys/"+escape(key)+":free"), body, out, opts); err != nil {
		return nil, err
	}
	return out, nil
}

// Namespace is a namespace.
type Namespace struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Revision  uint64    `json:"revision,string"`
	Queues    int       `json:"queues"`
	Quota     Quota     `json:"quota"`
	Usage     Quota     `json:"usage"` // what it holds of what the quota bounds
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// Namespace reads a namespace.
func (c *Client) Namespace(ctx context.Context, name string, opts ...CallOption) (*Namespace, error) {
	out := new(Namespace)
	if err := c.read(ctx, "/v1/namespaces/"+escape(name), nil, out, opts); err != nil {
		return nil, err
	}
	return out, nil
}

// PutNamespace creates a namespace if it does not exist.
func (c *Client) PutNamespace(ctx context.Context, name string, opts ...CallOption) (*Namespace, error) {
	out := new(Namespace)
	if err := c.change(ctx, http.MethodPut, "/v1/namespaces/"+escape(name), []byte("{}"), out, opts); err != nil {
		return nil, err
	}
	return out, nil
}

// DeleteNamespace removes an empty namespace.
func (c *Client) DeleteNamespace(ctx context.Context, name string, opts ...CallOption) error {
	return c.change(ctx, http.MethodDelete, "/v1/namespaces/"+escape(name), nil, nil, opts)
}

// Namespaces walks over all namespaces.
func (c *Client) Namespaces(ctx context.Context, opts ...CallOption) iter.Seq2[*Namespace, error] {
	return walk[*Namespace](ctx, c, "/v1/namespaces", nil, "namespaces", opts)
}

// Cluster reads the state of the cluster as JSON: it is for people and grows
// with them.
func (c *Client) Cluster(ctx context.Context, opts ...CallOption) (json.RawMessage, error) {
	var out json.RawMessage
	if err := c.read(ctx, "/v1/cluster", nil, &out, opts); err != nil {
		return nil, err
	}
	return out, nil
}

// Member is a node of the cluster as the node that answers sees it.
type Member struct {
	ID      string `json:"id"`
	Role    string `json:"role"` // voter, learner, gateway; outside: alive, and no server of this cluster
	HTTP    string `json:"http,omitempty"`
	RPC     string `json:"rpc,omitempty"`
	Raft    string `json:"raft,omitempty"`
	Version string `json:"version,omitempty"`
	Voter   bool   `json:"voter"`
	Leader  bool   `json:"leader"`
	Alive   bool   `json:"alive"`

	AppliedIndex  *uint64   `json:"applied_index,omitempty,string"` // of a server that answers
	LastContactMs *int64    `json:"last_contact_ms,omitempty"`      // since it heard of the leader; -1 never
	SnapshotAt    time.Time `json:"snapshot_at,omitzero"`           // cluster clock of its newest snapshot
}

// Members lists the nodes that are alive and the servers that should be, by id.
func (c *Client) Members(ctx context.Context) ([]*Member, error) {
	var out struct {
		Members []*Member `json:"members"`
	}
	if err := c.read(ctx, "/v1/cluster/members", nil, &out, nil); err != nil {
		return nil, err
	}
	return out.Members, nil
}

// ClusterSettings are what is set for the cluster as a whole.
type ClusterSettings struct {
	EventRetentionMillis int64  `json:"event_retention_ms,omitempty"`          // how long events can be watched from where one was
	IdempotencyKeysMax   uint64 `json:"idempotency_keys_max,omitempty,string"` // remembered in a namespace at a time
}

// ClusterSettings reads the settings of the cluster.
func (c *Client) ClusterSettings(ctx context.Context, opts ...CallOption) (*ClusterSettings, error) {
	out := new(ClusterSettings)
	if err := c.read(ctx, "/v1/cluster/settings", nil, out, opts); err != nil {
		return nil, err
	}
	return out, nil
}

// SetClusterSettings changes settings of the cluster; zero leaves one as it is.
// It returns all of them as they are then. Events are kept from 1 minute to 10
// years, keys are from 1 to 1,000,000,000; anything else, or nothing to change, is
// refused with invalid_argument. Sending it again does no harm.
func (c *Client) SetClusterSettings(ctx context.Context, settings ClusterSettings, opts ...CallOption) (*ClusterSettings, error) {
	body, err := marshal(settings)
	if err != nil {
		return nil, err
	}
	out := new(ClusterSettings)
	if err := c.change(ctx, http.MethodPut, "/v1/cluster/settings", body, out, opts); err != nil {
		return nil, err
	}
	return out, nil
}

// LogLevel is what the node at the client's address writes to its log: debug, info,
// warn or error.
func (c *Client) LogLevel(ctx context.Context) (*NodeLogLevel, error) {
	out := new(NodeLogLevel)
	return out, c.read(ctx, "/v1/cluster/log-level", nil, out, nil)
}

// SetLogLevel changes it, until the node's process ends.
func (c *Client) SetLogLevel(ctx context.Context, level string) (*NodeLogLevel, error) {
	body, err := marshal(struct {
		Level string `json:"level"`
	}{level})
	if err != nil {
		return nil, err
	}
	out := new(NodeLogLevel)
	return out, c.change(ctx, http.MethodPut, "/v1/cluster/log-level", body, out, nil)
}

// NodeLogLevel is the log level of one node.
type NodeLogLevel struct {
	Level  string `json:"level"`
	NodeID string `json:"node_id"`
}

// Transfer hands leadership to a server, or to the first voter that can take it
// if nodeID is empty, and returns who leads. A call whose answer is lost is
// repeated, so that without a nodeID leadership may move twice.
func (c *Client) Transfer(ctx context.Context, nodeID string) (leaderID string, err error) {
	body, err := marshal(struct {
		NodeID string `json:"node_id,omitempty"`
	}{nodeID})
	if err != nil {
		return "", err
	}
	var out struct {
		LeaderID string `json:"leader_id"`
	}
	err = c.change(ctx, http.MethodPost, "/v1/cluster:transfer", body, &out, nil)
	return out.LeaderID, err
}

// RemoveServer takes a server out of the cluster. It is refused with conflict if
// the server leads, or if fewer than three voters, or too few that are up, would be left and force is not
// given.
func (c *Client) RemoveServer(ctx context.Context, nodeID string, force bool) error {
	if c.fault != nil {
		return c.fault
	}
	body, err := marshal(struct {
		NodeID string `json:"node_id"`
		Force  bool   `json:"force,omitempty"`
	}{nodeID, force})
	if err != nil {
		return err
	}
	r := request{method: http.MethodPost, path: "/v1/cluster:remove", body: body}
	again := false
	return c.api.persist(ctx, r.path, func(ctx context.Context) error {
		err := c.api.try(ctx, r, nil)
		if again && errors.Is(err, schema.NotFound) {
			return nil // the try before did it, and its answer was lost
		}
		// Without a leader nothing happened; of any other failure nobody can tell.
		again = again || !errors.Is(err, schema.NoLeader) && !errors.Is(err, schema.NotLeader)
		return err
	})
}

// Debug is what helps to find out what is wrong with the node that answers, as a
// tar.gz without secrets and payloads. It is not tried again: another node may be
// asked then. The caller closes it.
func (c *Client) Debug(ctx context.Context) (io.ReadCloser, error) {
	if c.fault != nil {
		return nil, c.fault
	}
	answer, err := c.api.send(ctx, request{method: http.MethodGet, path: "/v1/cluster/debug", query: url.Values{}})
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}

// Backup streams a consistent copy of the whole state, made while the cluster
// goes on. A stream that breaks off ends with an error; the caller closes it.
func (c *Client) Backup(ctx context.Context) (io.ReadCloser, error) {
	if c.fault != nil {
		return nil, c.fault
	}
	var answer *http.Response
	r := request{method: http.MethodGet, path: "/v1/cluster/backup", query: url.Values{}}
	err := c.api.persist(ctx, r.method+" "+r.path, func(ctx context.Context) (err error) {
		answer, err = c.api.send(ctx, r)
		return err
	})
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}
