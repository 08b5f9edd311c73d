package access

// The table: every method of every surface, by its name there. Tests of each
// surface hold it against what the surface serves, in both directions.

// HTTP is by operationId of the OpenAPI document.
var HTTP = map[string]Rule{
	"submit-task":     {Submit, Namespaced},
	"submit-batch":    {Submit, Namespaced}, // all items are of the path's queue
	"list-tasks":      {Read, Namespaced},
	"bulk-tasks":      {Steer, Namespaced}, // by id or filter, inside the namespace
	"get-task":        {Read, Namespaced},
	"list-attempts":   {Read, Namespaced},
	"list-events":     {Read, Namespaced},
	"watch-task":      {Read, Namespaced},
	"cancel-task":     {Steer, Namespaced},
	"retry-task":      {Steer, Namespaced},
	"run-task":        {Steer, Namespaced},
	"review-task":     {Settle, Namespaced},
	"watch-namespace": {Read, Namespaced},

	"list-queues":  {Read, Namespaced},
	"get-backlog":  {Read, Namespaced},
	"put-queue":    {Configure, Namespaced},
	"get-queue":    {FindQueue, Namespaced},
	"delete-queue": {Configure, Namespaced},
	"pause-queue":  {Operate, Namespaced},
	"resume-queue": {Operate, Namespaced},

	"list-schedules":    {Read, Namespaced},
	"put-schedule":      {Configure, Namespaced},
	"get-schedule":      {Read, Namespaced},
	"delete-schedule":   {Configure, Namespaced},
	"pause-schedule":    {Operate, Namespaced},
	"resume-schedule":   {Operate, Namespaced},
	"trigger-schedule":  {Operate, Namespaced},
	"backfill-schedule": {Operate, Namespaced},
	"preview-schedule":  {Read, Namespaced},

	"get-activity":     {Read, Namespaced},
	"list-namespaces":  {Look, Filtered},
	"put-namespace":    {Command, Clusterwide},
	"get-namespace":    {Read, Namespaced},
	"delete-namespace": {Command, Clusterwide},

	"list-workers": {Read, Namespaced},
	"get-worker":   {Read, Namespaced},
	"drain-worker": {Operate, Namespaced},
	"list-keys":    {Read, Namespaced},
	"get-key":      {Read, Namespaced},
	"free-key":     {Operate, Namespaced},

	"get-cluster":         {Look, Filtered}, // totals, and no names of namespaces
	"backup-cluster":      {Command, Clusterwide},
	"debug-node":          {Command, Clusterwide},
	"list-members":        {Look, Filtered},
	"transfer-leadership": {Command, Clusterwide},
	"remove-server":       {Command, Clusterwide},
	"get-log-level":       {Command, Clusterwide}, // of the node that is asked
	"put-log-level":       {Command, Clusterwide},
	"get-settings":        {Look, Filtered}, // of all namespaces alike
	"put-settings":        {Command, Clusterwide},
	"get-profile":         {Command, Clusterwide},

	"get-caller":   {Self, Filtered},
	"create-token": {Tokens, Filtered}, // each grant of the new one
	"list-tokens":  {Tokens, Filtered}, // all grants of each
	"get-token":    {Tokens, Filtered},
	"revoke-token": {Tokens, Filtered},
	"list-audit":   {Audit, Filtered}, // all namespaces of each row
	"list-refused": {Audit, Clusterwide},

	"healthz": {Open, Clusterwide},
	"readyz":  {Open, Clusterwide},
	"openapi": {Open, Clusterwide},
	"docs":    {Open, Clusterwide},
	"home":    {Open, Clusterwide},
	"metrics": {Open, Clusterwide},
}

// Connect is the upgrade of GET /v1/worker: whoever may work anywhere may connect,
// and says in its hello where.
var Connect = Rule{Work, Filtered}

// Frames is by type of a frame of pulse.worker.v1 that a worker sends. All but the
// hello act in the session that the hello made, in its namespace and queue.
var Frames = map[string]Rule{
	"worker.hello":    {Work, Namespaced},
	"worker.capacity": {Work, Namespaced},
	"worker.resume":   {Work, Namespaced},
	"task.start":      {Work, Namespaced},
	"task.renew":      {Work, Namespaced},
	"task.finish":     {Work, Namespaced},
}

// RPC is by full name of a gRPC method, unary or stream. What is forwarded carries
// the caller, who was judged at the gateway by the lines above.
var RPC = map[string]Rule{
	"/pulse.v1.NodeService/Forward":  {Node, Clusterwide},
	"/pulse.v1.NodeService/Deliver":  {Node, Clusterwide},
	"/pulse.v1.NodeService/Watch":    {Node, Clusterwide},
	"/pulse.v1.NodeService/Backup":   {Node, Clusterwide},
	"/pulse.v1.NodeService/Describe": {Node, Clusterwide},
	"/pulse.v1.NodeService/Remove":   {Node, Clusterwide},
	"/pulse.v1.NodeService/Transfer": {Node, Clusterwide},
}
