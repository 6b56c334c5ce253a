//! Lanes over Arrow Flight, for any client.
//!
//! ```text
//! DoAction("describe", recipe as JSON) ─▶ {"plan": id}
//! GetFlightInfo(cmd {"plan": id, "epoch": 0}) ─▶ schema, one endpoint a lane
//! DoGet(ticket) ─▶ sample_id, tensors, what rides along
//! ```
//! A ticket is JSON, `{"plan": id, "lane": 3, "epoch": 0, "position": 0, "rows": 2048}`: the samples on that lane from
//! that position of the epoch on; each batch holds those of `rows` positions of all lanes. Follows the Arrow Flight RPC
//! specification; the token travels as `authorization: Bearer …`.

use super::connection::Serve;
use super::lane::FinishedRows;
use super::listen::GrpcIo;
use super::registry::FlightLane;
use super::schema::element;
use super::service::Service;
use super::ticket::LaneTicket;
use crate::{Error, ErrorKind, RecipeSpec, Result};
use arrow::array::{ArrayRef, FixedSizeListArray, Int64Array, ListArray, UInt64Array, make_array};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::datatypes::{Field, SchemaRef};
use arrow::record_batch::RecordBatch;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo,
    HandshakeRequest, HandshakeResponse, IpcMessage, PollInfo, PutResult, SchemaAsIpc, SchemaResult, Ticket,
};
use feedstock_ops::TensorSpec;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status, Streaming};

/// A request at most: a recipe with a vocabulary inside.
const REQUEST_BYTES: usize = crate::wire::SPEC_BYTES as usize;

/// A client that is cut off is noticed by this, and its lanes are let go.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Calls at once on one connection: all lanes of an order, twice.
const CONCURRENT_STREAMS: u32 = 128;

/// Serves gRPC on the connections that `incoming` brings, until none can come any more.
pub(super) async fn serve(service: Arc<Service>, mut incoming: mpsc::Receiver<io::Result<GrpcIo>>) {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<FlightServiceServer<Flight>>().await;
    let mut leaving = service.leaving();
    let guard = service.clone();
    let flight = FlightServiceServer::new(Flight { service }).max_decoding_message_size(REQUEST_BYTES);
    // Before a message is read: strangers may send no more than headers.
    let flight = InterceptedService::new(flight, move |request| check(&guard, request));
    let incoming = stream::poll_fn(move |cx| incoming.poll_recv(cx));
    let server = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(CONCURRENT_STREAMS)
        .add_service(health_service)
        .add_service(flight);
    let tell = async move {
        if leaving.wait_for(|leaving| *leaving).await.is_ok() {
            health.set_not_serving::<FlightServiceServer<Flight>>().await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        served = server.serve_with_incoming(incoming) => {
            if let Err(error) = served {
                tracing::warn!("the Flight service ended: {error}");
            }
        }
        () = tell => {}
    }
}

pub(super) struct Flight {
    service: Arc<Service>,
}

impl Flight {
    async fn lane(&self, ticket: LaneTicket) -> Result<FlightLane, Status> {
        if *self.service.leaving().borrow() {
            return Err(Status::unavailable("the worker is going away; ask another one"));
        }
        let plan = ticket.plan.clone();
        let lane = self.service.registry().flight(ticket).await.map_err(|e| status(&e))?;
        lane.ok_or_else(|| Status::not_found(format!("plan {plan} is not known here: describe it first")))
    }

    async fn info(&self, descriptor: FlightDescriptor) -> Result<FlightInfo, Status> {
        let ticket: LaneTicket = json(&descriptor.cmd, "the descriptor's cmd")?;
        let plan = ticket.plan.clone();
        let facts = self.service.registry().facts(&ticket.plan).await.map_err(|e| status(&e))?;
        let (schema, lanes) = facts
            .ok_or_else(|| Status::not_found(format!("plan {plan} is not known here: describe it first")))?;
        let mut info = FlightInfo::new()
            .try_with_schema(&schema)
            .map_err(|e| Status::internal(e.to_string()))?
            .with_descriptor(descriptor)
            .with_ordered(false);
        for lane in 0..lanes {
            let ticket = Ticket::new(to_json(&ticket.sealed(lane).map_err(|e| status(&e))?)?);
            // No location: the lane is where it was asked for, whatever that address looks like from outside.
            info = info.with_endpoint(FlightEndpoint::new().with_ticket(ticket));
        }
        Ok(info)
    }
}

fn check(service: &Service, request: Request<()>) -> Result<Request<()>, Status> {
    let Some(token) = service.token() else { return Ok(request) };
    let given = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    match token.is(given) {
        true => Ok(request),
        false => Err(Status::unauthenticated("send the worker's token as `authorization: Bearer TOKEN`")),
    }
}

type Answers<T> = BoxStream<'static, Result<T, Status>>;

#[tonic::async_trait]
impl FlightService for Flight {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = Answers<FlightData>;
    type DoPutStream = Answers<PutResult>;
    type DoExchangeStream = Answers<FlightData>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;

    async fn handshake(
        &self,
        _request: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        let answer = HandshakeResponse { protocol_version: 0, payload: Default::default() };
        Ok(Response::new(stream::iter([Ok(answer)]).boxed()))
    }

    async fn list_flights(
        &self,
        _request: Request<Criteria>,
    ) -> Result<Response<Self::ListFlightsStream>, Status> {
        let mut flights = Vec::new();
        for (plan, spec) in self.service.registry().specs() {
            if spec.functions.is_some() {
                continue; // `info` refuses it
            }
            let ticket = LaneTicket::new(plan);
            flights.push(self.info(FlightDescriptor::new_cmd(to_json(&ticket)?)).await);
        }
        Ok(Response::new(stream::iter(flights).boxed()))
    }

    async fn get_flight_info(
        &self,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.info(request.into_inner()).await.map(Response::new)
    }

    async fn poll_flight_info(
        &self,
        _request: Request<FlightDescriptor>,
    ) -> Result<Response<PollInfo>, Status> {
        Err(Status::unimplemented("flights are ready at once: use GetFlightInfo"))
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        let ticket: LaneTicket = json(&request.into_inner().cmd, "the descriptor's cmd")?;
        let facts = self.service.registry().facts(&ticket.plan).await.map_err(|e| status(&e))?;
        let (schema, _) =
            facts.ok_or_else(|| Status::not_found("the plan is not known here: describe it first"))?;
        let options = arrow_ipc::writer::IpcWriteOptions::default();
        let message = IpcMessage::try_from(SchemaAsIpc::new(&schema, &options));
        let IpcMessage(schema) = message.map_err(|e| Status::internal(e.to_string()))?;
        Ok(Response::new(SchemaResult { schema }))
    }

    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        let ticket: LaneTicket = json(&request.into_inner().ticket, "the ticket")?;
        ticket.check().map_err(|e| status(&e))?;
        let FlightLane { schema, lane } = self.lane(ticket).await?;
        let lane = self.service.counted(lane);
        let made = schema.clone();
        let batches = stream::try_unfold((lane, made), |(mut lane, schema)| async move {
            let Some(rows) = lane.next().await.map_err(|e| FlightError::from(status(&e)))? else {
                return Ok(None);
            };
            let batch = batch(lane.specs(), &schema, rows).map_err(|e| FlightError::from(status(&e)))?;
            Ok(Some((batch, (lane, schema))))
        });
        let frames = FlightDataEncoderBuilder::new().with_schema(schema).build(batches);
        Ok(Response::new(frames.map_err(Status::from).boxed()))
    }

    async fn do_put(
        &self,
        _request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoPutStream>, Status> {
        Err(Status::unimplemented("a worker only reads"))
    }

    async fn do_exchange(
        &self,
        _request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        Err(Status::unimplemented("a worker only reads"))
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        let Action { r#type, body } = request.into_inner();
        let answer = match r#type.as_str() {
            "describe" => {
                let spec: RecipeSpec = json(&body, "the recipe")?;
                let plan = self.service.registry().describe(spec).map_err(|e| status(&e))?;
                to_json(&serde_json::json!({ "plan": plan }))?
            }
            "status" => to_json(&self.service.status())?,
            other => return Err(Status::invalid_argument(format!("no action '{other}': describe, status"))),
        };
        let answer = arrow_flight::Result { body: answer.into() };
        Ok(Response::new(stream::iter([Ok(answer)]).boxed()))
    }

    async fn list_actions(
        &self,
        _request: Request<Empty>,
    ) -> Result<Response<Self::ListActionsStream>, Status> {
        let action = |name: &str, description: &str| {
            Ok(ActionType { r#type: name.into(), description: description.into() })
        };
        let actions = [
            action("describe", "takes a recipe as JSON, answers with its plan's id"),
            action("status", "how the worker is, as JSON"),
        ];
        Ok(Response::new(stream::iter(actions).boxed()))
    }
}

fn json<T: for<'a> Deserialize<'a>>(bytes: &[u8], what: &str) -> Result<T, Status> {
    serde_json::from_slice(bytes).map_err(|e| Status::invalid_argument(format!("{what} makes no sense: {e}")))
}

fn to_json<T: Serialize>(value: &T) -> Result<Vec<u8>, Status> {
    serde_json::to_vec(value).map_err(|e| Status::internal(e.to_string()))
}

fn status(error: &Error) -> Status {
    let message = error.to_string();
    match error.kind() {
        ErrorKind::Retryable => Status::unavailable(message),
        ErrorKind::BadSample => Status::data_loss(message),
        ErrorKind::BadConfig => Status::invalid_argument(message),
        ErrorKind::Denied => Status::permission_denied(message),
        ErrorKind::Gone => Status::not_found(message),
        ErrorKind::Bug => Status::internal(message),
    }
}

/// Checks that the elements of a ragged column fit one array, before they are copied.
fn check_elements(column: &str, elements: usize) -> Result<()> {
    match i32::try_from(elements) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::config(format!(
            "column '{column}': a batch has {elements} elements, over the limit of 2^31 − 1 elements; lower the batch size"
        ))),
    }
}

/// One step's rows as a batch; a row that failed fails the stream, with its sample's name.
fn batch(specs: &[TensorSpec], schema: &SchemaRef, rows: FinishedRows) -> Result<RecordBatch> {
    if let Some(error) = rows.heads.iter().find_map(|head| head.failure.as_ref()) {
        return Err(error.clone());
    }
    let bug = |e: arrow::error::ArrowError| Error::new(ErrorKind::Bug, format!("cannot make a batch: {e}"));
    let count = rows.heads.len();
    let mut arrays: Vec<ArrayRef> =
        vec![Arc::new(rows.heads.iter().map(|head| head.sample.0).collect::<UInt64Array>())];
    let mut ragged = 0;
    for (column, spec) in specs.iter().enumerate() {
        let parts: Vec<&[u8]> = (0..count).map(|row| rows.body.part(row, column)).collect();
        let width = spec.dtype.bytes();
        let elements = parts.iter().map(|part| part.len()).sum::<usize>() / width;
        if spec.is_ragged() {
            check_elements(schema.field(arrays.len()).name(), elements)?;
        }
        let data = arrow::array::ArrayData::builder(element(spec.dtype))
            .len(elements)
            .add_buffer(Buffer::from_vec(parts.concat()))
            .align_buffers(true)
            .build()
            .map_err(bug)?;
        let item = Arc::new(Field::new("item", element(spec.dtype), false));
        if spec.is_ragged() {
            let offsets = OffsetBuffer::from_lengths(parts.iter().map(|part| part.len() / width));
            arrays.push(Arc::new(ListArray::try_new(item, offsets, make_array(data), None).map_err(bug)?));
            let lengths = rows.heads.iter().map(|head| i64::try_from(head.lengths[ragged]).ok());
            arrays.push(Arc::new(lengths.collect::<Int64Array>()));
            ragged += 1;
        } else {
            let width = i32::try_from(spec.elements()).unwrap_or(i32::MAX);
            let list = FixedSizeListArray::try_new(item, width, make_array(data), None).map_err(bug)?;
            arrays.push(Arc::new(list));
        }
    }
    arrays.extend(rows.columns.columns().iter().cloned());
    RecordBatch::try_new(schema.clone(), arrays).map_err(bug)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_elements_than_an_array_holds_are_refused() {
        let most = (1 << 31) - 1;
        check_elements("images", most).unwrap();
        let error = check_elements("images", most + 1).unwrap_err();
        assert_eq!(
            error.message(),
            "column 'images': a batch has 2147483648 elements, over the limit of 2^31 − 1 elements; lower the batch size"
        );
    }
}
